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

/* softmax of x in whole multiples of 1/2048; x is overwritten, and filled up to whole blocks of keys.
 *
 * `next` are values that are needed soon: the first half of them is asked for here, the rest by MIX.
 * Returns 0 if it is not a number. */
static int NAME(softmax)(float *x, int length, int16_t *out, const int16_t *next, int width) {
    float most[KEYS];
    double sums[8] = {0};
    int end = (length + KEYS - 1) / KEYS * KEYS;
    for (int j = length; j < end; j++) x[j] = -INFINITY; /* whose weight is 0 */
    for (int l = 0; l < KEYS; l++) most[l] = x[l];
    for (int j = KEYS; j < end; j += KEYS)
        for (int l = 0; l < KEYS; l++) most[l] = x[j + l] > most[l] ? x[j + l] : most[l];
    for (int half = KEYS / 2; half; half /= 2)
        for (int l = 0; l < half; l++) most[l] = most[l + half] > most[l] ? most[l + half] : most[l];
    float largest = most[0];
    for (int j = 0; j < end; j += KEYS) {
        for (int l = j; l < j + KEYS; l++) x[l] = (float)NAME(exponential)((double)(x[l] - largest));
        for (int i = 0; i < KEYS * width / 2; i += 32, next += 32) __builtin_prefetch(next);
    }
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

static inline const int16_t *NAME(keys_of)(const Cache *cache, size_t head, int width) {
    return cache->keys + head * cache->keys_capacity * ((width + PIECE - 1) / PIECE * PIECE);
}

static inline const int16_t *NAME(values_of)(const Cache *cache, size_t head, int width) {
    return cache->values + head * cache->values_capacity * width;
}

/* Attention of one query over the first keys of a head: softmax(q k + bias) v, all rounded. `own` is
 * the bias of the last key alone. Keys and values of the head `next` are asked for meanwhile. */
static void NAME(attend)(const float *q, const Cache *cache, size_t head, size_t next, int length,
                         int width, const float *bias, float own, float value_unit, Scratch *s,
                         float *out) {
    int pieces = (width + PIECE - 1) / PIECE, blocks = (length + KEYS - 1) / KEYS;
    int16_t query[MOST_WIDTH];
    int32_t sums[MOST_WIDTH];
    float *weights = s->weights;
    float unit = NAME(round_row)(q, width, query);
    for (int i = width; i < pieces * PIECE; i++) query[i] = 0;
    const float *units = cache->units + head * cache->keys_capacity;
    __builtin_prefetch(cache->units + next * cache->keys_capacity);
    SCORES(query, NAME(keys_of)(cache, head, width), blocks, pieces,
           NAME(keys_of)(cache, next, width), s->scores);
    for (int j = 0; j < blocks * KEYS; j++) weights[j] = (float)s->scores[j] * (unit * units[j]);
    if (bias)
        for (int j = 0; j < length; j++) weights[j] += bias[j];
    if (own != 0) weights[length - 1] += own; /* also if it is not a number */
    const int16_t *later = NAME(values_of)(cache, next, width);
    /* What is made of what is not a number must not be one either. */
    if (!NAME(softmax)(weights, length, s->shares, later, width)) {
        for (int c = 0; c < width; c++) out[c] = NAN;
        return;
    }
    MIX(s->shares, NAME(values_of)(cache, head, width), length, width, later, sums);
    for (int c = 0; c < width; c++) out[c] = (float)sums[c] * value_unit;
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
        for (int h = 0; h < heads; h++) {
            size_t head = (size_t)row[r] * heads + h;
            size_t next = h + 1 < heads ? head + 1 : (size_t)row[r + 1 < rows ? r + 1 : r] * heads;
            NAME(attend)(parts + h * w, cache, head, next, at[r] + 1, w, 0, own, unit, s,
                         mixed + (size_t)r * d + h * w);
        }
    }
}

/* Attention of whole sources, token i at at[i] of row[i], to all `lengths[i]` tokens of its row. */
static void NAME(whole_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                  const int32_t *row, const int32_t *at, const int32_t *lengths,
                                  const Cache *cache, float *mixed, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    int16_t key[MOST_WIDTH] = {0}, value[MOST_WIDTH];
    NAME(linear)(&layer->project, x, rows, s->wide, 0, s);
    float unit = layer->round_values / 12582912.0f / 2048.0f;
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            const float *parts = s->wide + (size_t)r * 3 * d + h * w;
            float key_unit = NAME(round_row)(parts + d, w, key);
            NAME(round_to)(parts + 2 * d, w, layer->round_values, value);
            NAME(store)(cache, (size_t)row[r] * heads + h, at[r], w, key, key_unit, value);
        }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            size_t head = (size_t)row[r] * heads + h;
            size_t next = h + 1 < heads ? head + 1 : (size_t)row[r + 1 < rows ? r + 1 : r] * heads;
            NAME(attend)(s->wide + (size_t)r * 3 * d + h * w, cache, head, next, lengths[r], w, 0, 0,
                         unit, s, mixed + (size_t)r * d + h * w);
        }
}

/* In the place of a decoder's self-attention: `ExactRecurrentUnit` of integers/exact.py. */
static void NAME(recurrent_unit)(const Model *m, const Layer *layer, const float *x, int rows,
                                 const int32_t *row, const int32_t *at, const Cache *cache,
                                 float *result, Scratch *s) {
    int d = m->width;
    NAME(linear)(&layer->project, x, rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++, result += d) {
        const float *parts = s->wide + (size_t)r * 2 * d;
        float *states = cache->units + (size_t)row[r] * 2 * d;
        const float *before = states + at[r] % 2 * d;
        float *after = states + (at[r] + 1) % 2 * d;
        for (int i = 0; i < d; i++) {
            float forget = NAME(sigmoid)(parts[i]), fresh = (1.0f - forget) * parts[d + i];
            float kept = at[r] ? forget * before[i] : 0;
            float state = kept + fresh;
            after[i] = state;
            result[i] = state < 0 ? 0 : state;
        }
    }
}

static void NAME(cross_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                  const int32_t *row, const int32_t *visible, const float *bias,
                                  int bias_stride, const Cache *memory, float round_values,
                                  float *mixed, const Shares *shares, int number, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    float unit = round_values / 12582912.0f / 2048.0f;
    NAME(linear)(&layer->queries, x, rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            size_t head = (size_t)row[r] * heads + h;
            size_t next = h + 1 < heads ? head + 1 : (size_t)row[r + 1 < rows ? r + 1 : r] * heads;
            NAME(attend)(s->wide + (size_t)r * d + h * w, memory, head, next, visible[r], w,
                         bias ? bias + (size_t)r * bias_stride : 0, 0, unit, s,
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

