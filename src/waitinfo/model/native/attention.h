/* Attention over caches of whole numbers; all that it adds up is exact. */

/* Numbers rounded to about 8 bits relative to the largest, as whole numbers, and their unit.
 *
 * x + c - c rounds to multiples of the last bit of c; that bit is the unit. */
static inline float NAME(round_row)(const float *x, int count, int16_t *out) {
    union { float f; uint32_t i; } bits, inverse;
    Whole tops = {0};
    int whole = count / KEYS * KEYS, most; /* by their bits, in which what is not a number is the largest */
    for (int i = 0; i < whole; i += KEYS) {
        Whole v = *(const Whole *)(x + i) & 0x7fffffff;
        tops = HIGHER_WHOLE(v, tops);
    }
    most = TOP(tops);
    for (int i = whole; i < count; i++) {
        bits.f = x[i];
        int v = bits.i & 0x7fffffff;
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
    for (int i = 0; i < whole; i += KEYS) {
        Sixteen v = ((SIXTEEN(x + i) + c) - c) * inverse.f;
        *(Shorts *)(out + i) = __builtin_convertvector(__builtin_convertvector(v, Whole), Shorts);
    }
    for (int i = whole; i < count; i++) {
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
    int16_t *k = cache->keys + (head * cache->keys_capacity + at / FOUR * FOUR) * pieces * PIECE;
    k += at % FOUR * PIECE;
    for (int p = 0; p < pieces; p++)
        memcpy(k + (size_t)p * FOUR * PIECE, key + p * PIECE, PIECE * sizeof(int16_t));
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

/* The same in float32, in two steps: exp(x - largest), then whole numbers of it.
 *
 * The result is the same where no weight is so near to the middle of two whole numbers that rounding on
 * the way could have moved it across. Returns 0 where one is, which is seldom, or not a number. */
static inline float NAME(fast_powers)(const float *x, float largest, int blocks, float *powers) {
    Sixteen sums = {0};
    for (int i = 0; i < blocks * KEYS; i += KEYS) {
        Sixteen v = NAME(fast_exponential)(SIXTEEN(x + i) - largest);
        SIXTEEN(powers + i) = v;
        sums += v;
    }
    return TOTAL(sums);
}

static inline int NAME(fast_shares)(const float *powers, float total, int blocks, int16_t *out) {
    float share = 2048.0f / total, error = 1.5e-6f + 1e-7f * blocks; /* relative */
    Whole unsure = {0};
    for (int i = 0; i < blocks * KEYS; i += KEYS) {
        Sixteen v = SIXTEEN(powers + i) * share;
        Sixteen whole = (v + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23 */
        Sixteen far = v - whole, most = 0.5f - v * error;
        unsure |= ~((far < most) & (-far < most)); /* also what is not a number */
        *(Shorts *)(out + i) = __builtin_convertvector(__builtin_convertvector(whole, Whole), Shorts);
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
        if (bias) v += FIRST(bias + j, left);
        if (left <= KEYS) {
            if (own != 0) v += CHOOSE(places == left - 1, none + own, none); /* also if it is not a number */
            v = CHOOSE(places < left, v, least);
        }
        SIXTEEN(scores + j) = v;
        most = HIGHER(v, most);
    }
    return LARGEST(most);
}

/* What queries of a pass attend to: row r of it, with `length[r]` + `plus` keys. */
typedef struct {
    const Cache *cache;
    const float *queries; /* [rows][stride] */
    const int32_t *row, *length;
    int rows, heads, width, stride, plus;
    const float *bias, *info; /* info: of the last key, less 1 */
    int bias_stride;
    float value_unit;
    float *out; /* [rows][heads][width] */
    const Shares *shares; /* what is asked for of layer `number` of `layers`, or NULL */
    int layers, number;
} NAME(Attention);

/* One head of a row. Those of rows of one stream come together, so that its keys stay in a cache. */
typedef struct { int r, head; } NAME(Query);

static inline int NAME(next_queries)(const NAME(Attention) *a, NAME(Query) *at, int *begin, NAME(Query) *out) {
    int count = 0;
    for (; count < QUERIES && *begin < a->rows; count++) {
        out[count] = *at;
        if (at->r + 1 < a->rows && a->row[at->r + 1] == a->row[*begin]) {
            at->r++;
            continue;
        }
        if (++at->head == a->heads) at->head = 0, *begin = at->r + 1;
        at->r = *begin;
    }
    return count;
}

/* How far an attention has come: the queries that are next, and where those behind them begin. */
typedef struct {
    NAME(Query) at, next[QUERIES];
    int begin, count;
} NAME(Progress);

static NAME(Progress) NAME(begin_attention)(const NAME(Attention) *a) {
    NAME(Progress) p = {0};
    p.count = NAME(next_queries)(a, &p.at, &p.begin, p.next);
    return p;
}

/* softmax(q k + bias) v for the next queries of a pass, all rounded.
 *
 * Some go through each step together, so that one does not wait for another. Values are asked for
 * while scores are computed, and meanwhile with values the keys of the next queries. */
static void NAME(attend_some)(const NAME(Attention) *a, NAME(Progress) *p, Scratch *s) {
    int heads = a->heads, width = a->width, pieces = (width + PIECE - 1) / PIECE, count = p->count;
    NAME(Query) now[QUERIES], *then = p->next;
    memcpy(now, then, sizeof(now));
    int coming = NAME(next_queries)(a, &p->at, &p->begin, then), room = s->keys;
    int16_t query[QUERIES][MOST_WIDTH];
    int32_t sums[MOST_WIDTH];
    float unit[QUERIES], largest[QUERIES], total[QUERIES];
    size_t place[QUERIES];
    int length[QUERIES];
    for (int i = 0; i < count; i++) {
        int r = now[i].r;
        unit[i] = NAME(round_row)(a->queries + (size_t)r * a->stride + now[i].head * width, width, query[i]);
        for (int c = width; c < pieces * PIECE; c++) query[i][c] = 0;
        place[i] = (size_t)a->row[r] * heads + now[i].head;
        length[i] = a->length[r] + a->plus;
    }
    for (int i = 0; i < count; i++)
        SCORES(query[i], NAME(keys_of)(a->cache, place[i], width), length[i], pieces,
               NAME(values_of)(a->cache, place[i], width), s->scores + i * room);
    for (int i = 0; i < count; i++) {
        int r = now[i].r;
        const float *bias = a->bias ? a->bias + (size_t)r * a->bias_stride : 0;
        largest[i] = NAME(score)(s->scores + i * room, a->cache->units + place[i] * a->cache->keys_capacity,
                                 unit[i], length[i], bias, a->info ? a->info[r] - 1 : 0, s->weights + i * room);
    }
    float *powers = (float *)s->scores;
    for (int i = 0; i < count; i++)
        total[i] = NAME(fast_powers)(s->weights + i * room, largest[i], (length[i] + KEYS - 1) / KEYS,
                                     powers + i * room);
    for (int i = 0; i < count; i++) {
        int16_t *shares = s->shares + i * room;
        float *out = a->out + ((size_t)now[i].r * heads + now[i].head) * width;
        /* What is made of what is not a number must not be one either. */
        if (!NAME(fast_shares)(powers + i * room, total[i], (length[i] + KEYS - 1) / KEYS, shares) &&
            !NAME(softmax)(s->weights + i * room, length[i], shares)) {
            memset(shares, 0, room * sizeof(int16_t));
            for (int c = 0; c < width; c++) out[c] = NAN;
            continue;
        }
        size_t later = (size_t)a->row[then[i < coming ? i : 0].r] * heads + then[i < coming ? i : 0].head;
        MIX(shares, NAME(values_of)(a->cache, place[i], width), length[i], width,
            NAME(keys_of)(a->cache, later, width), sums);
        for (int c = 0; c < width; c++) out[c] = (float)sums[c] * a->value_unit;
        __builtin_prefetch(a->cache->units + later * a->cache->keys_capacity);
    }
    for (int i = 0; i < count && a->shares; i++) {
        size_t of = ((size_t)now[i].r * a->layers + a->number) * heads + now[i].head;
        int16_t *out = a->shares->of + of * a->shares->width;
        memcpy(out, s->shares + i * room, length[i] * sizeof(int16_t));
        memset(out + length[i], 0, (a->shares->width - length[i]) * sizeof(int16_t));
    }
    p->count = coming;
}

static void NAME(attend)(const NAME(Attention) *a, Scratch *s) {
    NAME(Progress) p = NAME(begin_attention)(a);
    while (p.count) NAME(attend_some)(a, &p, s);
}

/* Self-attention of new positions, whose keys and values go to the cache before it begins. Each
 * position attends to those up to its own, or, with `lengths`, to all of its row. */
static NAME(Attention) NAME(self_attention)(const Model *m, const Layer *layer, const float *x, int rows,
                                            const int32_t *row, const int32_t *at,
                                            const int32_t *lengths, const float *info,
                                            const Cache *cache, Scratch *s) {
    int d = m->width, heads = m->heads, w = d / heads;
    int16_t key[MOST_WIDTH] = {0}, value[MOST_WIDTH];
    NAME(linear)(&layer->project, x, rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++) {
        const float *parts = s->wide + (size_t)r * 3 * d;
        for (int h = 0; h < heads; h++) {
            float key_unit = NAME(round_row)(parts + d + h * w, w, key);
            NAME(round_to)(parts + 2 * d + h * w, w, layer->round_values, value);
            NAME(store)(cache, (size_t)row[r] * heads + h, at[r], w, key, key_unit, value);
        }
    }
    return (NAME(Attention)){
        .cache = cache, .queries = s->wide, .row = row, .length = lengths ? lengths : at, .rows = rows,
        .heads = heads, .width = w, .stride = 3 * d, .plus = !lengths, .info = info, /* repeats `self_bias` of model/info.py */
        .value_unit = layer->round_values / 12582912.0f / 2048.0f, .out = s->mixed,
    };
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

