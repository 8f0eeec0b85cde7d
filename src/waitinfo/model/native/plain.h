/* The parts that depend on the CPU, in plain C for any of them.
 *
 * Every kind of CPU has three: integer products of some rows with a block of outputs, products of a
 * query with keys that lie by fours, and weighted sums of values. With them, kind.h makes everything else. */

/* Sums [rows][BLOCK] of rows of inputs a [rows][stride]. */
static void multiply_plain(const Byte *a, int rows, int stride, const int8_t *weights,
                           int groups, Ahead ahead, int32_t *sums) {
    for (int r = 0; r < rows; r++) {
        int32_t *to = sums + r * BLOCK;
        memset(to, 0, BLOCK * sizeof(int32_t));
        const Byte *in = a + (size_t)r * stride;
        const int8_t *w = weights;
        for (int i = 0; i < 4 * groups; i += SIDE, in += SIDE, w += SIDE * BLOCK) {
            __builtin_prefetch(ahead.weights + (size_t)i / 4 * ahead.step);
            for (int j = 0; j < BLOCK; j++)
                for (int k = 0; k < SIDE; k++) to[j] += in[k] * w[SIDE * j + k];
        }
    }
}

/* q k of keys: sums [keys], up to a whole four. `next` is what is needed soon, as much as keys. */
static void scores_plain(const int16_t *query, const int16_t *keys, int length, int pieces,
                         const int16_t *next, int32_t *sums) {
    memset(sums, 0, (size_t)(length + FOUR - 1) / FOUR * FOUR * sizeof(int32_t));
    for (int j = 0; j < length; j += FOUR, sums += FOUR)
        for (int p = 0; p < pieces; p++)
            for (int k = 0; k < FOUR; k++, keys += PIECE, next += PIECE) {
                __builtin_prefetch(next);
                for (int i = 0; i < PIECE; i++) sums[k] += query[PIECE * p + i] * keys[i];
            }
}

/* The weighted sum of values; the weight behind the last is zero. */
static void mix_plain(const int16_t *weights, const int16_t *values, int length, int width,
                      const int16_t *next, int32_t *sums) {
    memset(sums, 0, width * sizeof(int32_t));
    for (int j = 0; j < length; j += 2) {
        int32_t a = weights[j], b = weights[j + 1];
        const int16_t *v = values + (size_t)j * width;
        __builtin_prefetch(next + (size_t)j * width);
        for (int c = 0; c < width; c++) sums[c] += a * v[2 * c] + b * v[2 * c + 1];
    }
}

static inline float total_of(Sixteen v) {
    for (int half = KEYS / 2; half; half /= 2)
        for (int l = 0; l < half; l++) v[l] += v[l + half];
    return v[0];
}

static inline float largest_of(Sixteen v) {
    for (int half = KEYS / 2; half; half /= 2)
        for (int l = 0; l < half; l++) v[l] = v[l] > v[l + half] ? v[l] : v[l + half];
    return v[0];
}

static inline int32_t top_of(Whole v) {
    for (int half = KEYS / 2; half; half /= 2)
        for (int l = 0; l < half; l++) v[l] = v[l] > v[l + half] ? v[l] : v[l + half];
    return v[0];
}

static inline int any_of(Whole v) {
    int found = 0;
    for (int l = 0; l < KEYS; l++) found |= v[l];
    return found != 0;
}

/* The first `left` numbers, and zeros behind them. */
static inline Sixteen first_of(const float *x, int left) {
    Sixteen v = {0};
    if (left >= KEYS) return SIXTEEN(x);
    memcpy(&v, x, left * sizeof(float));
    return v;
}

#define NAME(x) x##_plain
#define RUNS NULL
#define MULTIPLY multiply_plain
#define SCORES scores_plain
#define MIX mix_plain
#define MOST_ROWS 1
#include "kind.h"
