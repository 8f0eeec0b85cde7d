/* Products of rows of floats with a matrix of integers. */

/* Whole numbers. */
static void NAME(take_whole)(const Linear *m, const float *x, int rows, Byte *out,
                             float *largest) {
    int inputs = m->inputs, stride = stride_of(m), plus = plus_of(m);
    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * inputs;
        Byte *to = out + (size_t)r * stride;
        int i = 0;
        for (; i < inputs; i++) to[i] = (Byte)((int)row[i] + plus);
        for (; i < stride; i++) to[i] = 0;
        largest[r] = 1;
    }
}

/* What does not fit into the byte of an input goes to the bytes of its repetitions. */
static inline void NAME(repeat)(const Linear *m, const float *row, float factor, Byte *to) {
    int plus = plus_of(m);
    for (int i = 0; i < m->repeats; i++) {
        int j = m->repeated[i], before = m->before[i];
        int v = (int)__builtin_rintf((row[j] - m->center[j]) * factor);
        v -= v > before ? before : v < -before ? -before : v;
        to[i] = (Byte)((v > 127 ? 127 : v < -127 ? -127 : v) + plus);
    }
}

/* Quantize rows: x[r] * 127 / max|x[r]|, rounded to even; * 255 if none is negative. */
__attribute__((always_inline)) static inline void NAME(quantize_rows)(
    const Linear *m, const float *x, int rows, Byte *out, float *largest, const int centered) {
    int inputs = m->inputs, stride = stride_of(m), plus = plus_of(m);
    float levels = m->positive ? 255.0f : 127.0f;
    const float *center = m->center, *share = m->share;
    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * inputs;
        Byte *to = out + (size_t)r * stride;
        /* Without their sign, floats are ordered as their bits are; what is not a number is above.
         * Compilers make vectors of this loop, since the order of integers does not matter. */
        const float least = SMALLEST;
        uint32_t top;
        memcpy(&top, &least, 4);
        int i = 0;
        for (; i < inputs; i++) {
            float v = row[i];
            if (centered) v = (v - center[i]) * share[i];
            uint32_t bits;
            memcpy(&bits, &v, 4);
            bits &= 0x7fffffff;
            top = bits > top ? bits : top;
        }
        if (top >= 0x7f800000) { /* what is made of it must not be a number either */
            largest[r] = NAN;
            memset(to, 0, stride);
            continue;
        }
        float most;
        memcpy(&most, &top, 4);
        largest[r] = most;
        float factor = levels / most;
        if (centered) {
            for (i = 0; i < inputs; i++) {
                int v = (int)__builtin_rintf((row[i] - center[i]) * factor);
                to[i] = (Byte)((v > 127 ? 127 : v < -127 ? -127 : v) + plus);
            }
            NAME(repeat)(m, row, factor, to + inputs);
            i += m->repeats;
        } else
            for (i = 0; i < inputs; i++)
                to[i] = (Byte)((int)__builtin_rintf(row[i] * factor) + plus);
        for (; i < stride; i++) to[i] = 0;
    }
}

static void NAME(quantize)(const Linear *m, const float *x, int rows, Byte *out,
                           float *largest) {
    if (m->center)
        NAME(quantize_rows)(m, x, rows, out, largest, 1);
    else
        NAME(quantize_rows)(m, x, rows, out, largest, 0);
}

/* What the integer sums of a block stand for: its outputs, with relu on request. */
__attribute__((always_inline)) static inline void NAME(rescale)(
    const Scaling *scaling, const int32_t *sums, float largest, float *y, const int relu) {
    for (int j = 0; j < BLOCK; j++) {
        float v = (float)(sums[j] - scaling->shift[j]) * scaling->factor[j];
        v = v * largest;
        v = v + scaling->bias[j];
        y[j] = relu && v < 0 ? 0 : v;
    }
}

static void NAME(go_on)(void *beside);

/* Integer products of rows with one block of outputs: sums [rows][BLOCK], for few rows at a time.
 *
 * The sums are used while they are in the nearest cache. `ahead` is what is asked for meanwhile. */
static inline void NAME(sum_block)(const Linear *m, int n, int first, int rows, Scratch *scratch) {
    const int8_t *weights = block_of(m, n);
    int stride = stride_of(m), parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const char *pieces[MOST_PIECES];
    Later *later = scratch->later;
    if (later && scratch->beside && later_is_there(later)) {
        NAME(go_on)(scratch->beside);
        BEGIN_PRODUCTS; /* which it ended */
    }
    Ahead ahead = {weights + 4096, 4 * BLOCK, 0};
    if (parts > 1) { /* each part asks for its share of the next block */
        ahead.step = 4 * BLOCK / parts;
        ahead.weights = block_of(m, n + BLOCK) + first / MOST_ROWS * ahead.step * m->groups;
    }
    int some = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
    if (later && some == MOST_ROWS && later_pieces(later, m->groups, pieces)) ahead.pieces = pieces;
    MULTIPLY(scratch->bytes + (size_t)first * stride, some, stride, weights, m->groups, ahead,
             scratch->sums);
}

/* y = x W^T + b for rows of integers with a scale. */
__attribute__((always_inline)) static inline void NAME(apply_rows)(const Linear *m, int rows,
                                                                   float *y, const int relu,
                                                                   Scratch *scratch) {
    BEGIN_PRODUCTS;
    for (int n = 0; n < m->outputs; n += BLOCK) {
        const Scaling *scaling = scaling_of(m, block_of(m, n));
        int count = m->outputs - n < BLOCK ? m->outputs - n : BLOCK;
        for (int r = 0; r < rows; r++) {
            if (r % MOST_ROWS == 0) NAME(sum_block)(m, n, r, rows, scratch);
            const int32_t *sums = scratch->sums + r % MOST_ROWS * BLOCK;
            float *to = y + (size_t)r * m->outputs + n;
            if (count == BLOCK)
                NAME(rescale)(scaling, sums, scratch->largest[r], to, relu);
            else {
                float found[BLOCK];
                NAME(rescale)(scaling, sums, scratch->largest[r], found, relu);
                memcpy(to, found, count * sizeof(float));
            }
        }
    }
    END_PRODUCTS;
}

static void NAME(apply)(const Linear *m, int rows, float *y, int relu, Scratch *scratch) {
    if (relu)
        NAME(apply_rows)(m, rows, y, 1, scratch);
    else
        NAME(apply_rows)(m, rows, y, 0, scratch);
}

/* The same for floats. */
static void NAME(linear)(const Linear *m, const float *x, int rows, float *y, int relu,
                         Scratch *scratch) {
    NAME(quantize)(m, x, rows, scratch->bytes, scratch->largest);
    NAME(apply)(m, rows, y, relu, scratch);
}

/* Add a block of outputs to the sum of a row's powers, relative to the largest. The order of the sum is
 * the same on every CPU. */
static inline void NAME(add_powers)(const float *y, float before, float largest, double *total) {
    Sixteen sums = {0};
    for (int j = 0; j < BLOCK; j += KEYS) sums += NAME(fast_exponential)(SIXTEEN(y + j) - largest);
    if (largest > before) *total *= NAME(exponential)((double)before - largest);
    *total += total_of(sums);
}

/* The best output of every row but those in `never`; on request all outputs, and the probabilities of the
 * two best [rows][2]. */
static void NAME(best)(const Linear *m, const float *x, int rows, const int32_t *never, int nevers,
                       int32_t *best, float *value, float *all, double *two, Scratch *s) {
    NAME(quantize)(m, x, rows, s->bytes, s->largest);
    for (int r = 0; r < rows; r++) value[r] = -INFINITY, best[r] = 0;
    if (two) /* meanwhile the sum of powers, and the second largest output */
        for (int r = 0; r < rows; r++) two[2 * r] = 0, two[2 * r + 1] = -INFINITY;
    BEGIN_PRODUCTS;
    for (int n = 0; n < m->outputs; n += BLOCK) {
        const Scaling *scaling = scaling_of(m, block_of(m, n));
        int count = m->outputs - n < BLOCK ? m->outputs - n : BLOCK;
        for (int r = 0; r < rows; r++) {
            float y[BLOCK];
            if (r % MOST_ROWS == 0) NAME(sum_block)(m, n, r, rows, s);
            NAME(rescale)(scaling, s->sums + r % MOST_ROWS * BLOCK, s->largest[r], y, 0);
            for (int i = 0; i < nevers; i++)
                if (never[i] >= n && never[i] < n + count) y[never[i] - n] = -INFINITY;
            if (all) memcpy(all + (size_t)r * m->outputs + n, y, count * sizeof(float));
            int above = 0; /* seldom; compilers make vectors of this loop, not of the next ones */
            float before = value[r], least = two ? (float)two[2 * r + 1] : before;
            for (int j = count; j < BLOCK; j++) y[j] = -INFINITY;
            for (int j = 0; j < BLOCK; j++) above |= y[j] > least;
            if (above)
                for (int j = 0; j < count; j++) {
                    if (y[j] > value[r])
                        least = value[r], value[r] = y[j], best[r] = n + j;
                    else if (y[j] > least)
                        least = y[j];
                }
            if (!two) continue;
            two[2 * r + 1] = least;
            NAME(add_powers)(y, before, value[r], two + 2 * r);
        }
    }
    END_PRODUCTS;
    if (two)
        for (int r = 0; r < rows; r++) {
            two[2 * r] = 1 / two[2 * r];
            two[2 * r + 1] = NAME(exponential)(two[2 * r + 1] - value[r]) * two[2 * r];
        }
}
