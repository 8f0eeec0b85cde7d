/* Attention over caches of whole numbers; all that it adds up is exact. */

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

/* Store a key and a value at one position; the key is filled up with zeros. */
static inline void NAME(store)(const Cache *cache, size_t head, int at, int width,
                               const int16_t *key, float unit, const int16_t *value) {
    int pieces = (width + PIECE - 1) / PIECE;
    int16_t *k = cache->keys + (head * cache->keys_capacity + at / KEYS * KEYS) * pieces * PIECE;
    k += PLACE(at % KEYS) * PIECE;
    for (int p = 0; p < pieces; p++)
        memcpy(k + (size_t)p * KEYS * PIECE, key + p * PIECE, PIECE * sizeof(int16_t));
    cache->units[head * cache->keys_capacity + at] = unit;
    pair *v = (pair *)(cache->values + (head * cache->values_capacity + at / 2 * 2) * width);
    if (at % 2) /* compilers make vectors of whole pairs */
        for (int i = 0; i < width; i++) v[i] = (v[i] & 0xffff) | (uint32_t)value[i] << 16;
    else
        for (int i = 0; i < width; i++) v[i] = (v[i] & 0xffff0000) | (uint16_t)value[i];
}

static inline const int16_t *NAME(keys_of)(const Cache *cache, size_t head, int width) {
    return cache->keys + head * cache->keys_capacity * ((width + PIECE - 1) / PIECE * PIECE);
}

static inline const int16_t *NAME(values_of)(const Cache *cache, size_t head, int width) {
    return cache->values + head * cache->values_capacity * width;
}

/* softmax of x in whole multiples of 1/2048; x is overwritten up to whole blocks of keys.
 * Returns 0 if it is not a number. */
static int NAME(softmax)(float *x, int length, int16_t *out) {
    float largest = x[0];
    double sums[8] = {0};
    int end = (length + KEYS - 1) / KEYS * KEYS;
    for (int j = length; j < end; j++) x[j] = -INFINITY; /* whose weight is 0 */
    for (int j = 1; j < length; j++) largest = x[j] > largest ? x[j] : largest;
    for (int j = 0; j < end; j++) x[j] = (float)NAME(exponential)((double)(x[j] - largest));
    for (int j = 0; j < end; j += 8)
        for (int l = 0; l < 8; l++) sums[l] += x[j + l];
    for (int half = 4; half; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    float total = (float)sums[0];
    if (total != total) return 0;
    for (int j = 0; j < end; j++) {
        float v = x[j] / total + ROUND_WEIGHTS;
        out[j] = (int16_t)((v - ROUND_WEIGHTS) * 2048.0f);
    }
    return 1;
}

/* The same in float32. Its result is the same where no weight is so near to the middle of two whole
 * numbers that rounding on the way could have moved it across. Returns 0 where one is, which is
 * seldom, or not a number; x is kept then. `room` is for one number of each key. */
static inline int NAME(fast_softmax)(const float *x, float largest, int blocks, int16_t *out,
                                     float *room) {
    Sixteen sums = {0};
    for (int b = 0; b < blocks; b++) sums += SIXTEEN(room + b * KEYS) = NAME(fast_exponential)(SIXTEEN(x + b * KEYS) - largest);
    float share = 2048.0f / TOTAL(sums), error = 1.5e-6f + 1e-7f * blocks; /* relative */
    Whole unsure = {0};
    for (int b = 0; b < blocks; b++) {
        Sixteen v = SIXTEEN(room + b * KEYS) * share;
        Sixteen whole = (v + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23 */
        Sixteen far = v - whole, most = 0.5f - v * error;
        unsure |= ~((far < most) & (-far < most)); /* also what is not a number */
        *(Shorts *)(out + b * KEYS) = __builtin_convertvector(__builtin_convertvector(whole, Whole), Shorts);
    }
    return !ANY(unsure);
}

/* The scores of one head's keys: (q k) units + bias. `own` is the bias of the last key alone. What is
 * behind it is -infinity. Returns the largest. */
static inline float NAME(score)(const int32_t *sums, const float *units, float unit, int length,
                                const float *bias, float own, float *scores) {
    const Whole places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Sixteen none = {0}, least = none - INFINITY;
    Sixteen most = least;
    for (int j = 0; j < length; j += KEYS) {
        Sixteen v = __builtin_convertvector(*(const Whole *)(sums + j), Sixteen) * (unit * SIXTEEN(units + j));
        int left = length - j;
        if (bias) {
            Sixteen more = none;
            if (left >= KEYS)
                more = SIXTEEN(bias + j);
            else
                memcpy(&more, bias + j, left * sizeof(float));
            v += more;
        }
        if (left <= KEYS) {
            if (own != 0) v += CHOOSE(places == left - 1, none + own, none); /* also if it is not a number */
            v = CHOOSE(places < left, v, least);
        }
        SIXTEEN(scores + j) = v;
        most = CHOOSE(v > most, v, most);
    }
    return LARGEST(most);
}

/* Attention of one row's queries over the first keys of all heads: softmax(q k + bias) v, all rounded.
 *
 * Heads go through each step together, so that one does not wait for another. Values are asked for
 * while scores are computed, and meanwhile with values the keys of the row `next`. */
static void NAME(attend)(const Model *m, const float *q, const Cache *cache, int row, int next,
                         int length, const float *bias, float own, float value_unit, Scratch *s,
                         float *out) {
    int heads = m->heads, width = m->width / heads, room = (length + KEYS - 1) / KEYS * KEYS;
    int pieces = (width + PIECE - 1) / PIECE, blocks = room / KEYS;
    size_t first = (size_t)row * heads, later = (size_t)next * heads;
    int32_t sums[MOST_WIDTH];
    float largest[heads];
    for (int h = 0; h < heads; h++) {
        int16_t query[MOST_WIDTH];
        float unit = NAME(round_row)(q + h * width, width, query);
        for (int i = width; i < pieces * PIECE; i++) query[i] = 0;
        SCORES(query, NAME(keys_of)(cache, first + h, width), blocks, pieces,
               NAME(values_of)(cache, first + h, width), s->scores + h * room);
        const float *units = cache->units + (first + h) * cache->keys_capacity;
        largest[h] = NAME(score)(s->scores + h * room, units, unit, length, bias, own, s->weights + h * room);
    }
    for (int h = 0; h < heads; h++) {
        float *weights = s->weights + h * room;
        int16_t *shares = s->shares + h * room;
        /* What is made of what is not a number must not be one either. */
        if (!NAME(fast_softmax)(weights, largest[h], blocks, shares, (float *)s->scores) &&
            !NAME(softmax)(weights, length, shares)) {
            for (int c = 0; c < width; c++) out[h * width + c] = NAN;
            memset(shares, 0, room * sizeof(int16_t));
            continue;
        }
        MIX(shares, NAME(values_of)(cache, first + h, width), length, width,
            NAME(keys_of)(cache, later + h, width), sums);
        for (int c = 0; c < width; c++) out[h * width + c] = (float)sums[c] * value_unit;
        __builtin_prefetch(cache->units + (later + h) * cache->keys_capacity);
    }
}

/* Self-attention of new positions; their keys and values go to the cache first. */
static void NAME(self_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                 const int32_t *row, const int32_t *at, const float *info,
                                 const Cache *cache, float *mixed, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    int16_t key[MOST_WIDTH] = {0}, value[MOST_WIDTH];
    NAME(linear)(&layer->project, x, rows, s->wide, 0, s);
    float unit = layer->round_values / 12582912.0f / 2048.0f;
    for (int r = 0; r < rows; r++) {
        const float *parts = s->wide + (size_t)r * 3 * d;
        float own = info ? info[r] - 1 : 0; /* repeats `self_bias` of model/info.py */
        for (int h = 0; h < heads; h++) { /* of all heads, so that none waits for what it has stored */
            float key_unit = NAME(round_row)(parts + d + h * w, w, key);
            NAME(round_to)(parts + 2 * d + h * w, w, layer->round_values, value);
            NAME(store)(cache, (size_t)row[r] * heads + h, at[r], w, key, key_unit, value);
        }
        NAME(attend)(m, parts, cache, row[r], row[r + 1 < rows ? r + 1 : r], at[r] + 1, 0, own, unit,
                     s, mixed + (size_t)r * d);
    }
}

static void NAME(cross_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                  const int32_t *row, const int32_t *visible, const float *bias,
                                  int bias_stride, const Cache *memory, float round_values,
                                  float *mixed, const Shares *shares, int number, Scratch *s) {
    int d = m->width, heads = m->heads;
    float unit = round_values / 12582912.0f / 2048.0f;
    NAME(linear)(&layer->queries, x, rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++) {
        NAME(attend)(m, s->wide + (size_t)r * d, memory, row[r], row[r + 1 < rows ? r + 1 : r],
                     visible[r], bias ? bias + (size_t)r * bias_stride : 0, 0, unit, s,
                     mixed + (size_t)r * d);
        if (!shares) continue;
        int room = (visible[r] + KEYS - 1) / KEYS * KEYS;
        for (int h = 0; h < heads; h++) {
            size_t place = ((size_t)r * m->decoder_layers + number) * heads + h;
            int16_t *out = shares->of + place * shares->width;
            memcpy(out, s->shares + h * room, visible[r] * sizeof(int16_t));
            memset(out + visible[r], 0, (shares->width - visible[r]) * sizeof(int16_t));
        }
    }
}

/* Store keys and values [rows][layers][2][width] of the source, for all decoder layers. */
static void NAME(remember)(const Model *m, int rows, const float *x, const int32_t *row,
                           const int32_t *at, const Cache *memories) {
    int d = m->width, heads = m->heads, w = d / heads, layers = m->decoder_layers;
    int16_t key[MOST_WIDTH] = {0}, value[MOST_WIDTH];
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

