/* Included once for every kind of CPU: NAME(x) adds its suffix, MULTIPLY is its product. */

/* Whole numbers, plus 128 if they may be negative. */
static void NAME(take_whole)(const Linear *m, const float *x, int rows, uint8_t *out,
                             float *largest) {
    int inputs = m->inputs, stride = 4 * m->groups, plus = m->positive ? 0 : 128;
    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * inputs;
        uint8_t *to = out + (size_t)r * stride;
        int i = 0;
        for (; i < inputs; i++) to[i] = (uint8_t)((int)row[i] + plus);
        for (; i < stride; i++) to[i] = 0;
        largest[r] = 1;
    }
}

/* What does not fit into the byte of an input goes to the bytes of its repetitions. */
static inline void NAME(repeat)(const Linear *m, const float *row, float factor, uint8_t *to) {
    for (int i = 0; i < m->repeats; i++) {
        int j = m->repeated[i], before = m->before[i];
        int v = (int)__builtin_rintf((row[j] - m->center[j]) * factor);
        v -= v > before ? before : v < -before ? -before : v;
        to[i] = (uint8_t)((v > 127 ? 127 : v < -127 ? -127 : v) + 128);
    }
}

/* Quantize rows: x[r] * 127 / max|x[r]|, rounded to even, plus 128; or 255 and 0. */
__attribute__((always_inline)) static inline void NAME(quantize_rows)(
    const Linear *m, const float *x, int rows, uint8_t *out, float *largest, const int centered) {
    int inputs = m->inputs, stride = 4 * m->groups, plus = m->positive ? 0 : 128;
    float levels = m->positive ? 255.0f : 127.0f;
    const float *center = m->center, *share = m->share;
    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * inputs;
        uint8_t *to = out + (size_t)r * stride;
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
            memset(to, 128, stride);
            continue;
        }
        float most;
        memcpy(&most, &top, 4);
        largest[r] = most;
        float factor = levels / most;
        if (centered) {
            for (i = 0; i < inputs; i++) {
                int v = (int)__builtin_rintf((row[i] - center[i]) * factor);
                to[i] = (uint8_t)((v > 127 ? 127 : v < -127 ? -127 : v) + 128);
            }
            NAME(repeat)(m, row, factor, to + inputs);
            i += m->repeats;
        } else
            for (i = 0; i < inputs; i++)
                to[i] = (uint8_t)((int)__builtin_rintf(row[i] * factor) + plus);
        for (; i < stride; i++) to[i] = 0;
    }
}

static void NAME(quantize)(const Linear *m, const float *x, int rows, uint8_t *out,
                           float *largest) {
    if (m->center)
        NAME(quantize_rows)(m, x, rows, out, largest, 1);
    else
        NAME(quantize_rows)(m, x, rows, out, largest, 0);
}

/* Integer products of rows with one block of BLOCK outputs: sums[r][BLOCK]. */
static void NAME(products)(const uint8_t *a, int rows, int stride, const int8_t *weights,
                           int groups, int32_t *sums) {
    int r = 0;
    for (; r + MOST_ROWS <= rows; r += MOST_ROWS)
        MULTIPLY(a + (size_t)r * stride, MOST_ROWS, stride, weights, groups, sums + r * BLOCK);
    if (r < rows)
        MULTIPLY(a + (size_t)r * stride, rows - r, stride, weights, groups, sums + r * BLOCK);
}

/* What integer sums of a block stand for. */
static inline void NAME(rescale)(const Scaling *scaling, const int32_t *sums, float largest,
                                 float *y) {
    for (int j = 0; j < BLOCK; j++) {
        float v = (float)(sums[j] - scaling->shift[j]) * scaling->factor[j];
        v = v * largest;
        y[j] = v + scaling->bias[j];
    }
}

/* y = x W^T + b for rows of integers with a scale; with relu on request. */
static void NAME(apply)(const Linear *m, int rows, float *y, int relu, Scratch *scratch) {
    int stride = 4 * m->groups;
    for (int n = 0; n < m->outputs; n += BLOCK) {
        const int8_t *weights = block_of(m, n);
        NAME(products)(scratch->bytes, rows, stride, weights, m->groups, scratch->sums);
        int count = m->outputs - n < BLOCK ? m->outputs - n : BLOCK;
        for (int r = 0; r < rows; r++) {
            float found[BLOCK];
            NAME(rescale)(scaling_of(m, weights), scratch->sums + r * BLOCK, scratch->largest[r],
                          found);
            if (relu)
                for (int j = 0; j < BLOCK; j++) found[j] = found[j] < 0 ? 0 : found[j];
            memcpy(y + (size_t)r * m->outputs + n, found, count * sizeof(float));
        }
    }
}

/* The same for floats. */
static void NAME(linear)(const Linear *m, const float *x, int rows, float *y, int relu,
                         Scratch *scratch) {
    NAME(quantize)(m, x, rows, scratch->bytes, scratch->largest);
    NAME(apply)(m, rows, y, relu, scratch);
}

/* x <- norm(x + y), or norm(x) without y, into out. */
static void NAME(normalise)(const Norm *m, const float *x, const float *y, int rows, int width,
                            float *out) {
    for (int r = 0; r < rows; r++) {
        const float *a = x + (size_t)r * width;
        const float *b = y ? y + (size_t)r * width : 0;
        float *to = out + (size_t)r * width;
        if (b)
            for (int i = 0; i < width; i++) to[i] = b[i] + a[i];
        else if (to != a)
            memcpy(to, a, width * sizeof(float));
        if (!m) continue;
        double lanes[8] = {0}, total = 0;
        int i = 0;
        for (; i + 8 <= width; i += 8)
            for (int j = 0; j < 8; j++) lanes[j] += to[i + j];
        for (; i < width; i++) total += to[i];
        for (int j = 0; j < 8; j++) total += lanes[j];
        double mean = total / width;
        for (int j = 0; j < 8; j++) lanes[j] = 0;
        total = 0;
        for (i = 0; i + 8 <= width; i += 8)
            for (int j = 0; j < 8; j++) {
                double v = to[i + j] - mean;
                lanes[j] += v * v;
            }
        for (; i < width; i++) total += (to[i] - mean) * (to[i] - mean);
        for (int j = 0; j < 8; j++) total += lanes[j];
        double scale = 1 / __builtin_sqrt(total / width + m->eps);
        for (i = 0; i < width; i++) {
            float v = (float)((to[i] - mean) * scale);
            v = v * m->weight[i];
            to[i] = v + m->bias[i];
        }
    }
}

/* Numbers rounded to about 8 bits relative to the largest, as whole numbers, and their unit.
 *
 * x + c - c rounds to multiples of the last bit of c; that bit is the unit. */
static inline float NAME(round_row)(const float *x, int count, int16_t *out) {
    union { float f; uint32_t i; } bits, inverse;
    uint32_t most = 0; /* by their bits, in which what is not a number is the largest */
    for (int i = 0; i < count; i++) {
        bits.f = x[i];
        uint32_t v = bits.i & 0x7fffffff;
        most = v > most ? v : most;
    }
    bits.i = most;
    float c = bits.f * 65536.0f;
    bits.f = c;
    int exponent = (int)((bits.i & 0x7fffffff) >> 23);
    if (exponent < 32 || exponent > 250) { /* zeros, or not numbers */
        memset(out, 0, count * sizeof(int16_t));
        return exponent < 32 ? 0 : __builtin_nanf("");
    }
    inverse.i = (uint32_t)(2 * 127 + 23 - exponent) << 23;
    bits.i = (uint32_t)(exponent - 23) << 23;
    for (int i = 0; i < count; i++) {
        float v = x[i] + c;
        out[i] = (int16_t)((v - c) * inverse.f);
    }
    return bits.f;
}

/* Numbers rounded to the last bit of c, as whole numbers. */
static inline void NAME(round_to)(const float *x, int count, float c, int16_t *out) {
    float inverse = 12582912.0f / c; /* 1.5 * 2^23 */
    for (int i = 0; i < count; i++) {
        float v = x[i] + c;
        v = (v - c) * inverse;
        v = v < 32767.0f ? v : 32767.0f;
        out[i] = (int16_t)(v > -32767.0f ? v : -32767.0f);
    }
}

/* Store a key and a value at one position. */
static void NAME(store)(const Cache *cache, size_t head, int at, int width, const int16_t *key,
                        float unit, const int16_t *value) {
    int pairs = (width + 1) / 2;
    int16_t *k = cache->keys + ((head * cache->keys_capacity + at / KEYS * KEYS) * pairs + at % KEYS) * 2;
    for (int i = 0; i < width; i++) k[i / 2 * 2 * KEYS + i % 2] = key[i];
    cache->units[head * cache->keys_capacity + at] = unit;
    int16_t *v = cache->values + (head * cache->values_capacity + at / 2 * 2) * width + at % 2;
    for (int i = 0; i < width; i++) v[2 * i] = value[i];
}

/* exp(x) for x <= 0, to the last bits of a double. */
static inline double NAME(exponential)(double x) {
    x = x < -200 ? -200 : x;
    double n = __builtin_rint(x * 1.4426950408889634074);
    double r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    union { double d; uint64_t i; } bits = {n + 6755399441055744.0}; /* the integer n in the low bits */
    union { uint64_t i; double d; } scale = {(bits.i + 1023) << 52};
    return p * scale.d;
}

/* log(x) for normal x > 0, to the last bits of a double: x = 2^n m, and with s = (m - 1) / (m + 1),
 * log m = 2 (s + s^3 / 3 + s^5 / 5 + ...). */
static inline double NAME(logarithm)(double x) {
    union { double d; int64_t i; } bits = {x};
    const int64_t root = 0x3fe6a09e667f3bcd; /* sqrt(1/2), the least m */
    int64_t n = (bits.i - root) >> 52;
    bits.i -= n * ((int64_t)1 << 52);
    double s = (bits.d - 1) / (bits.d + 1), t = s * s;
    double p = 1.0 / 25.0;
    p = p * t + 1.0 / 23.0;
    p = p * t + 1.0 / 21.0;
    p = p * t + 1.0 / 19.0;
    p = p * t + 1.0 / 17.0;
    p = p * t + 1.0 / 15.0;
    p = p * t + 1.0 / 13.0;
    p = p * t + 1.0 / 11.0;
    p = p * t + 1.0 / 9.0;
    p = p * t + 1.0 / 7.0;
    p = p * t + 1.0 / 5.0;
    p = p * t + 1.0 / 3.0;
    p = p * t * s + s;
    return (double)n * 6.93147180559945286227e-01 + 2 * p;
}

static inline double NAME(hyperbolic_tangent)(double x) {
    double e = NAME(exponential)(-2 * __builtin_fabs(x));
    return __builtin_copysign((1 - e) / (1 + e), x);
}

/* softmax of x, which is overwritten, in whole multiples of 1/2048; a zero behind the last.
 *
 * Returns 0 if it is not a number. */
static int NAME(softmax)(float *x, int length, int16_t *out) {
    float most[8];
    double sums[8];
    for (int l = 0; l < 8; l++) most[l] = x[0], sums[l] = 0;
    int j = 0;
    for (; j + 8 <= length; j += 8)
        for (int l = 0; l < 8; l++) most[l] = x[j + l] > most[l] ? x[j + l] : most[l];
    for (; j < length; j++) most[0] = x[j] > most[0] ? x[j] : most[0];
    for (int l = 1; l < 8; l++) most[0] = most[l] > most[0] ? most[l] : most[0];
    float largest = most[0];
    for (j = 0; j < length; j++) x[j] = (float)NAME(exponential)((double)(x[j] - largest));
    for (j = 0; j + 8 <= length; j += 8)
        for (int l = 0; l < 8; l++) sums[l] += x[j + l];
    for (; j < length; j++) sums[0] += x[j];
    for (int l = 1; l < 8; l++) sums[0] += sums[l];
    float total = (float)sums[0];
    if (total != total) return 0;
    for (j = 0; j < length; j++) {
        float v = x[j] / total + ROUND_WEIGHTS;
        out[j] = (int16_t)((v - ROUND_WEIGHTS) * 2048.0f);
    }
    out[length] = 0;
    return 1;
}

/* Attention of one query over the first keys of a head: softmax(q k + bias) v, all rounded. */
static void NAME(attend)(const float *q, const Cache *cache, size_t head, int length, int width,
                         const float *bias, float value_unit, Scratch *s, float *out) {
    int pairs = (width + 1) / 2;
    int16_t query[MOST_WIDTH + 1];
    int32_t sums[MOST_WIDTH > KEYS ? MOST_WIDTH : KEYS];
    float *weights = s->weights;
    query[width] = 0;
    float unit = NAME(round_row)(q, width, query);
    const int16_t *keys = cache->keys + head * cache->keys_capacity * pairs * 2;
    const float *units = cache->units + head * cache->keys_capacity;
    for (int j = 0; j < length; j += KEYS) {
        SCORES(query, keys + (size_t)j * pairs * 2, pairs, sums);
        int count = length - j < KEYS ? length - j : KEYS;
        for (int i = 0; i < count; i++) weights[j + i] = (float)sums[i] * (unit * units[j + i]);
    }
    if (bias)
        for (int j = 0; j < length; j++) weights[j] += bias[j];
    if (!NAME(softmax)(weights, length, s->shares)) { /* what is made of it must not be one either */
        for (int c = 0; c < width; c++) out[c] = NAN;
        return;
    }
    const int16_t *values = cache->values + head * cache->values_capacity * width;
    MIX(s->shares, values, length, width, sums);
    for (int c = 0; c < width; c++) out[c] = (float)sums[c] * value_unit;
}

/* Ask for the first keys and values of a head, which are used soon.
 *
 * Compilers take a function that only does this for one that does nothing, and leave out its calls
 * unless it is always inlined. */
__attribute__((always_inline)) static inline void NAME(fetch)(const Cache *cache, size_t head, int length, int width) {
    int pairs = (width + 1) / 2;
    const char *keys = (const char *)(cache->keys + head * cache->keys_capacity * pairs * 2);
    const char *values = (const char *)(cache->values + head * cache->values_capacity * width);
    size_t size = (size_t)(length + KEYS - 1) / KEYS * KEYS * pairs * 4;
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch(keys + i, 0, 2);
    size = (size_t)(length + 1) / 2 * 2 * width * 2;
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch(values + i, 0, 2);
    __builtin_prefetch(cache->units + head * cache->keys_capacity, 0, 2);
}

__attribute__((always_inline)) static inline void NAME(fetch_heads)(const Cache *cache, int row,
                                                                    int heads, int length,
                                                                    int width) {
    for (int h = 0; h < heads; h++) NAME(fetch)(cache, (size_t)row * heads + h, length, width);
}

/* Self-attention of new positions; their keys and values go to the cache first. */
static void NAME(self_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                 const int32_t *row, const int32_t *at, const float *info,
                                 const Cache *cache, float *mixed, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    int16_t key[MOST_WIDTH], value[MOST_WIDTH];
    NAME(fetch_heads)(cache, row[0], heads, at[0] + 1, w);
    NAME(linear)(&layer->project, x, rows, s->wide, 0, s);
    float unit = layer->round_values / 12582912.0f / 2048.0f;
    for (int r = 0; r < rows; r++) {
        const float *parts = s->wide + (size_t)r * 3 * d;
        size_t head = (size_t)row[r] * heads;
        int length = at[r] + 1;
        for (int h = 0; h < heads; h++) {
            float key_unit = NAME(round_row)(parts + d + h * w, w, key);
            NAME(round_to)(parts + 2 * d + h * w, w, layer->round_values, value);
            NAME(store)(cache, head + h, at[r], w, key, key_unit, value);
        }
        if (info) {
            memset(s->bias, 0, length * sizeof(float));
            s->bias[at[r]] = info[r] - 1;  /* repeats `self_bias` of model/info.py */
        }
        int next = r + 1 < rows && row[r + 1] != row[r];
        for (int h = 0; h < heads; h++) {
            if (next) NAME(fetch)(cache, (size_t)row[r + 1] * heads + h, at[r + 1] + 1, w);
            NAME(attend)(parts + h * w, cache, head + h, length, w, info ? s->bias : 0, unit, s,
                         mixed + (size_t)r * d + h * w);
        }
    }
}

static void NAME(cross_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                  const int32_t *row, const int32_t *visible, const float *bias,
                                  int bias_stride, const Cache *memory, float round_values,
                                  float *mixed, const Shares *shares, int number, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    float unit = round_values / 12582912.0f / 2048.0f;
    NAME(fetch_heads)(memory, row[0], heads, visible[0], w);
    NAME(linear)(&layer->queries, x, rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            if (r + 1 < rows)
                NAME(fetch)(memory, (size_t)row[r + 1] * heads + h, visible[r + 1], w);
            NAME(attend)(s->wide + (size_t)r * d + h * w, memory, (size_t)row[r] * heads + h,
                         visible[r], w, bias ? bias + (size_t)r * bias_stride : 0, unit, s,
                         mixed + (size_t)r * d + h * w);
            if (shares) {
                size_t place = ((size_t)r * m->decoder_layers + number) * heads + h;
                int16_t *out = shares->of + place * shares->width;
                memcpy(out, s->shares, visible[r] * sizeof(int16_t));
                memset(out + visible[r], 0, (shares->width - visible[r]) * sizeof(int16_t));
            }
        }
}

/* Store keys and values [rows][layers][2][width] of the source, for all decoder layers. */
static void NAME(remember)(const Model *m, int rows, const float *x, const int32_t *row,
                           const int32_t *at, const Cache *memories) {
    int d = m->width, heads = m->heads, w = d / heads, layers = m->decoder_layers;
    int16_t key[MOST_WIDTH], value[MOST_WIDTH];
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < layers; l++) {
            const float *parts = x + ((size_t)r * layers + l) * 2 * d;
            for (int h = 0; h < heads; h++) {
                float unit = NAME(round_row)(parts + h * w, w, key);
                NAME(round_to)(parts + d + h * w, w, m->round_memory[l], value);
                NAME(store)(memories + l, (size_t)row[r] * heads + h, at[r], w, key, unit, value);
            }
        }
}

/* One sublayer and its residual connection; `mixed` is the sublayer's result before its output. */
static void NAME(output)(const Model *m, const Linear *out, const Norm *norm, float *x,
                         const float *mixed, int rows, Scratch *s) {
    NAME(linear)(out, mixed, rows, s->result, 0, s);
    NAME(normalise)(m->before ? 0 : norm, x, s->result, rows, m->width, x);
}

static const float *NAME(input)(const Model *m, const Norm *norm, const float *x, int rows,
                                Scratch *s) {
    if (!m->before) return x;
    NAME(normalise)(norm, x, 0, rows, m->width, s->normed);
    return s->normed;
}

static void NAME(feed_forward)(const Model *m, const Layer *layer, float *x, int rows, Scratch *s) {
    const float *in = NAME(input)(m, &layer->norm_feed_forward, x, rows, s);
    NAME(linear)(&layer->inner, in, rows, s->wide, 1, s);
    NAME(output)(m, &layer->outer, &layer->norm_feed_forward, x, s->wide, rows, s);
}

static void NAME(encode)(const Model *m, int rows, float *x, const int32_t *row, const int32_t *at,
                         const float *info, const Cache *caches, const Cache *memories,
                         Scratch *s) {
    for (int l = 0; l < m->encoder_layers; l++) {
        const Layer *layer = m->encoder + l;
        const float *in = NAME(input)(m, &layer->norm_attention, x, rows, s);
        NAME(self_attention)(m, layer, in, rows, row, at, info, caches + l, s->mixed, s);
        NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->encoder_norm, x, 0, rows, m->width, x);
    NAME(linear)(&m->memory, x, rows, s->wide, 0, s);
    NAME(remember)(m, rows, s->wide, row, at, memories);
}

static void NAME(decode)(const Model *m, int rows, float *x, const int32_t *row, const int32_t *at,
                         const int32_t *visible, const float *info, const float *bias,
                         int bias_stride, const Cache *caches, const Cache *memories,
                         const Shares *shares, Scratch *s) {
    for (int l = 0; l < m->decoder_layers; l++) {
        const Layer *layer = m->decoder + l;
        const float *in = NAME(input)(m, &layer->norm_attention, x, rows, s);
        NAME(self_attention)(m, layer, in, rows, row, at, info, caches + l, s->mixed, s);
        NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        in = NAME(input)(m, &layer->norm_cross, x, rows, s);
        NAME(cross_attention)(m, layer, in, rows, row, visible, bias, bias_stride, memories + l,
                              m->round_memory[l], s->mixed, shares, l, s);
        NAME(output)(m, &layer->cross_out, &layer->norm_cross, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->decoder_norm, x, 0, rows, m->width, x);
}

/* Repeats `consistency` of model/info.py: log(2 - |info - theirs|), not below log(LEAST_WEIGHT). */
static void NAME(consistency)(const float *theirs, float info, int count, float *bias) {
    for (int j = 0; j < count; j++) {
        float weight = 2.0f - __builtin_fabsf(info - theirs[j]);
        weight = weight < LEAST_WEIGHT ? LEAST_WEIGHT : weight;
        bias[j] = weight != weight ? weight : (float)NAME(logarithm)(weight);
    }
}

/* The best output of every row but those in `never`; all outputs on request. */
static void NAME(best)(const Linear *m, const float *x, int rows, const int32_t *never, int nevers,
                       int32_t *best, float *value, float *all, Scratch *s) {
    int stride = 4 * m->groups;
    NAME(quantize)(m, x, rows, s->bytes, s->largest);
    for (int r = 0; r < rows; r++) best[r] = -1;
    for (int n = 0; n < m->outputs; n += BLOCK) {
        const int8_t *weights = block_of(m, n);
        NAME(products)(s->bytes, rows, stride, weights, m->groups, s->sums);
        int count = m->outputs - n < BLOCK ? m->outputs - n : BLOCK;
        for (int r = 0; r < rows; r++) {
            float y[BLOCK], most = -INFINITY;
            NAME(rescale)(scaling_of(m, weights), s->sums + r * BLOCK, s->largest[r], y);
            for (int i = 0; i < nevers; i++)
                if (never[i] >= n && never[i] < n + count) y[never[i] - n] = -INFINITY;
            if (all) memcpy(all + (size_t)r * m->outputs + n, y, count * sizeof(float));
            for (int j = 0; j < count; j++) most = y[j] > most ? y[j] : most;
            if (best[r] < 0 || most > value[r] || (most != most && value[r] == value[r])) {
                int j = 0;
                while (j < count - 1 && !(y[j] == most)) j++;
                best[r] = n + j;
                value[r] = most;
            }
        }
    }
}

/* tanh(x) as PARTS rows of whole numbers, plus 128: 127 tanh(x) is the sum of p_i / STEP^i. */
static void NAME(split)(const float *x, int count, int stride, uint8_t *out) {
    for (int i = 0; i < count; i++) {
        float rest = (float)NAME(hyperbolic_tangent)(x[i]) * 127.0f;
        for (int p = 0; p < PARTS; p++) {
            float part = __builtin_rintf(rest);
            out[(size_t)p * stride + i] = (uint8_t)((int)part + 128);
            rest = (rest - part) * STEP;
        }
    }
    for (int p = 0; p < PARTS; p++)
        for (int i = count; i < stride; i++) out[(size_t)p * stride + i] = 0;
}

/* Repeats `InfoQuantizer` of model/info.py: 2 sigmoid(out tanh(W tanh(x))). */
static void NAME(predict_info)(const Embedding *m, int rows, const float *x, float *info,
                               Scratch *s) {
    const Linear *hidden = &m->hidden;
    int stride = 4 * hidden->groups;
    double *totals = (double *)s->wide; /* which is large enough: three rows for each */
    for (int r = 0; r < rows; r++) {
        NAME(split)(x + (size_t)r * m->width, m->width, stride,
                    s->bytes + (size_t)r * PARTS * stride);
        totals[r] = 0;
    }
    for (int n = 0; n < hidden->outputs; n += BLOCK) {
        const int8_t *weights = block_of(hidden, n);
        const Scaling *scaling = scaling_of(hidden, weights);
        NAME(products)(s->bytes, PARTS * rows, stride, weights, hidden->groups, s->sums);
        int count = hidden->outputs - n < BLOCK ? hidden->outputs - n : BLOCK;
        for (int r = 0; r < rows; r++) {
            const int32_t *sums = s->sums + (size_t)r * PARTS * BLOCK;
            double products[BLOCK], total = 0;
            for (int j = 0; j < count; j++) {
                float value = 0;
                for (int p = PARTS - 1; p >= 0; p--) { /* smallest first */
                    float part = (float)(sums[p * BLOCK + j] - scaling->shift[j]);
                    part = part * scaling->factor[j];
                    float unit = p == 0 ? 1.0f : p == 1 ? STEP : STEP * STEP;
                    value = value + part / unit;
                }
                products[j] = (float)NAME(hyperbolic_tangent)(value) * m->out[n + j];
            }
            for (int j = 0; j < count; j++) total += products[j];
            totals[r] += total;
        }
    }
    for (int r = 0; r < rows; r++) {
        double e = NAME(exponential)(-__builtin_fabs(totals[r]));
        info[r] = (float)(2 * (totals[r] < 0 ? e : 1) / (1 + e));
    }
}

static void NAME(embed)(const Embedding *m, int rows, const int32_t *tokens, const int32_t *at,
                        const float *positions, float *x, float *info, Scratch *s) {
    int width = m->width;
    for (int r = 0; r < rows; r++) {
        const int8_t *weight = m->weight + (size_t)tokens[r] * width;
        const float *position = positions + (size_t)at[r] * width;
        float scale = m->scale[tokens[r]], *to = x + (size_t)r * width;
        for (int i = 0; i < width; i++) {
            float v = (float)weight[i] * scale;
            v = v * m->factor;
            to[i] = v + position[i];
        }
    }
    if (!info) return;
    if (m->table)
        for (int r = 0; r < rows; r++) info[r] = m->table[tokens[r]];
    else
        NAME(predict_info)(m, rows, x, info, s);
    for (int r = 0; r < rows; r++)
        if (tokens[r] == m->begin) info[r] = 1;
}

#undef NAME
#undef MULTIPLY
#undef SCORES
#undef MIX
#undef MOST_ROWS
