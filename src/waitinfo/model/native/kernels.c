/* The layers of an integer model in C: what model/integers computes, with the same bits.
 *
 * Products of integers are exact in any order, and attention rounds its operands so that sums of
 * floats are exact too (see integers/exact.py). What is left, sums of layer norm and softmax, is in double
 * precision. So this code must not be compiled with options that reorder or fuse other operations:
 * -ffp-contract=off, no -ffast-math.
 *
 * Called through ctypes: kernels.py finds the compiled code.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#else
#define X86 0
#endif

#include "types.h"

/* Plain C, for any CPU. */

/* q k of one block of keys. */
static void scores_plain(const int16_t *query, const int16_t *keys, int pairs, int32_t *sums) {
    memset(sums, 0, KEYS * sizeof(int32_t));
    for (int p = 0; p < pairs; p++)
        for (int j = 0; j < KEYS; j++)
            sums[j] += query[2 * p] * keys[(p * KEYS + j) * 2] +
                       query[2 * p + 1] * keys[(p * KEYS + j) * 2 + 1];
}

/* The weighted sum of values; the weight behind the last is zero. */
static void mix_plain(const int16_t *weights, const int16_t *values, int length, int width,
                      int32_t *sums) {
    memset(sums, 0, width * sizeof(int32_t));
    for (int j = 0; j < length; j += 2) {
        int32_t a = weights[j], b = weights[j + 1];
        const int16_t *v = values + (size_t)j * width;
        if (a || b)
            for (int c = 0; c < width; c++) sums[c] += a * v[2 * c] + b * v[2 * c + 1];
    }
}

static void multiply_plain(const uint8_t *a, int rows, int stride, const int8_t *weights,
                           int groups, int32_t *sums) {
    for (int r = 0; r < rows; r++) {
        int32_t *to = sums + r * BLOCK;
        memset(to, 0, BLOCK * sizeof(int32_t));
        for (int g = 0; g < groups; g++) {
            const uint8_t *in = a + (size_t)r * stride + 4 * g;
            const int8_t *w = weights + (size_t)g * 4 * BLOCK;
            for (int j = 0; j < BLOCK; j++)
                to[j] += in[0] * w[4 * j] + in[1] * w[4 * j + 1] + in[2] * w[4 * j + 2] +
                         in[3] * w[4 * j + 3];
        }
    }
}

#define NAME(x) x##_plain
#define MULTIPLY multiply_plain
#define SCORES scores_plain
#define MIX mix_plain
#define MOST_ROWS 1
#include "kernels.h"

#if X86

#pragma GCC push_options
#pragma GCC target("avx2")

__attribute__((always_inline)) static inline void multiply_avx2_rows(
    const uint8_t *a, const int rows, int stride, const int8_t *weights, int groups,
    int32_t *sums) {
    for (int part = 0; part < BLOCK; part += 16) { /* as many outputs as fit the registers */
        __m256i acc[2][4];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[r][j] = _mm256_setzero_si256();
        for (int g = 0; g < groups; g++) {
            const int8_t *w = weights + ((size_t)g * BLOCK + part) * 4;
            if (!part) { /* as below; the other parts find them in a cache */
                _mm_prefetch((const char *)(w + 4096), _MM_HINT_T1);
                _mm_prefetch((const char *)(w + 4224), _MM_HINT_T1);
            }
            __m256i in[2];
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, a + (size_t)r * stride + 4 * g, 4);
                in[r] = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(w + 16 * j)));
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    acc[r][j] = _mm256_add_epi32(acc[r][j], _mm256_madd_epi16(wide, in[r]));
            }
        }
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int j = 0; j < 4; j += 2) { /* two sums for every output */
                __m256i sum = _mm256_hadd_epi32(acc[r][j], acc[r][j + 1]);
                sum = _mm256_permute4x64_epi64(sum, 0xd8);
                _mm256_storeu_si256((void *)(sums + r * BLOCK + part + 4 * j), sum);
            }
    }
}

static void scores_avx2(const int16_t *query, const int16_t *keys, int pairs, int32_t *sums) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int p = 0; p < pairs; p++) {
        int32_t pair;
        memcpy(&pair, query + 2 * p, 4);
        __m256i q = _mm256_set1_epi32(pair);
        const int16_t *k = keys + p * KEYS * 2;
        low = _mm256_add_epi32(low, _mm256_madd_epi16(q, _mm256_loadu_si256((const void *)k)));
        high = _mm256_add_epi32(
            high, _mm256_madd_epi16(q, _mm256_loadu_si256((const void *)(k + KEYS))));
    }
    _mm256_storeu_si256((void *)sums, low);
    _mm256_storeu_si256((void *)(sums + 8), high);
}

static void mix_avx2(const int16_t *weights, const int16_t *values, int length, int width,
                     int32_t *sums) {
    if (width % 32) {
        mix_plain(weights, values, length, width, sums);
        return;
    }
    for (int c = 0; c < width; c += 32) {
        __m256i acc[4];
        for (int i = 0; i < 4; i++) acc[i] = _mm256_setzero_si256();
        for (int j = 0; j < length; j += 2) {
            int32_t pair;
            memcpy(&pair, weights + j, 4);
            if (!pair) continue;
            __m256i w = _mm256_set1_epi32(pair);
            const int16_t *v = values + (size_t)j * width + 2 * c;
            for (int i = 0; i < 4; i++) {
                __m256i two = _mm256_loadu_si256((const void *)(v + 16 * i));
                acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(w, two));
            }
        }
        for (int i = 0; i < 4; i++) _mm256_storeu_si256((void *)(sums + c + 8 * i), acc[i]);
    }
}

static void multiply_avx2(const uint8_t *a, int rows, int stride, const int8_t *weights, int groups,
                          int32_t *sums) {
    if (rows == 1)
        multiply_avx2_rows(a, 1, stride, weights, groups, sums);
    else
        multiply_avx2_rows(a, 2, stride, weights, groups, sums);
}

#define NAME(x) x##_avx2
#define MULTIPLY multiply_avx2
#define SCORES scores_avx2
#define MIX mix_avx2
#define MOST_ROWS 2
#include "kernels.h"

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

/* In assembly, since compilers keep the sums in memory otherwise. */
#define ADD_PRODUCTS(sum, in, w) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(in), "v"(w))

__attribute__((always_inline)) static inline void multiply_vnni_rows(
    const uint8_t *a, const int rows, int stride, const int8_t *weights, int groups,
    int32_t *sums) {
    __m512i acc[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) acc[r][j] = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        const int8_t *w = weights + (size_t)g * BLOCK * 4;
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        __m512i w2 = _mm512_loadu_si512(w + 128), w3 = _mm512_loadu_si512(w + 192);
        /* Into the second level of caches, and every other line: its neighbour comes with it. */
        _mm_prefetch((const char *)(w + 4096), _MM_HINT_T1);
        _mm_prefetch((const char *)(w + 4224), _MM_HINT_T1);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, a + (size_t)r * stride + 4 * g, 4);
            __m512i in = _mm512_set1_epi32(four);
            ADD_PRODUCTS(acc[r][0], in, w0);
            ADD_PRODUCTS(acc[r][1], in, w1);
            ADD_PRODUCTS(acc[r][2], in, w2);
            ADD_PRODUCTS(acc[r][3], in, w3);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) _mm512_storeu_si512(sums + r * BLOCK + 16 * j, acc[r][j]);
}

static void multiply_vnni(const uint8_t *a, int rows, int stride, const int8_t *weights, int groups,
                          int32_t *sums) {
    switch (rows) {
    case 1: multiply_vnni_rows(a, 1, stride, weights, groups, sums); break;
    case 2: multiply_vnni_rows(a, 2, stride, weights, groups, sums); break;
    case 3: multiply_vnni_rows(a, 3, stride, weights, groups, sums); break;
    case 4: multiply_vnni_rows(a, 4, stride, weights, groups, sums); break;
    case 5: multiply_vnni_rows(a, 5, stride, weights, groups, sums); break;
    default: multiply_vnni_rows(a, 6, stride, weights, groups, sums);
    }
}

static void scores_vnni(const int16_t *query, const int16_t *keys, int pairs, int32_t *sums) {
    __m512i even = _mm512_setzero_si512(), odd = even;
    int p = 0;
    for (; p + 2 <= pairs; p += 2) {
        int32_t pair[2];
        memcpy(pair, query + 2 * p, 8);
        const int16_t *k = keys + p * KEYS * 2;
        even = _mm512_dpwssd_epi32(even, _mm512_set1_epi32(pair[0]), _mm512_loadu_si512(k));
        odd = _mm512_dpwssd_epi32(odd, _mm512_set1_epi32(pair[1]),
                                  _mm512_loadu_si512(k + 2 * KEYS));
    }
    if (p < pairs) {
        int32_t pair;
        memcpy(&pair, query + 2 * p, 4);
        even = _mm512_dpwssd_epi32(even, _mm512_set1_epi32(pair),
                                   _mm512_loadu_si512(keys + p * KEYS * 2));
    }
    _mm512_storeu_si512(sums, _mm512_add_epi32(even, odd));
}

static void mix_vnni(const int16_t *weights, const int16_t *values, int length, int width,
                     int32_t *sums) {
    if (width % 64) {
        mix_avx2(weights, values, length, width, sums);
        return;
    }
    for (int c = 0; c < width; c += 64) {
        __m512i a = _mm512_setzero_si512(), b = a, d = a, e = a;
        for (int j = 0; j < length; j += 2) {
            int32_t pair;
            memcpy(&pair, weights + j, 4);
            if (!pair) continue;
            __m512i w = _mm512_set1_epi32(pair);
            const int16_t *v = values + (size_t)j * width + 2 * c;
            a = _mm512_dpwssd_epi32(a, w, _mm512_loadu_si512(v));
            b = _mm512_dpwssd_epi32(b, w, _mm512_loadu_si512(v + 32));
            d = _mm512_dpwssd_epi32(d, w, _mm512_loadu_si512(v + 64));
            e = _mm512_dpwssd_epi32(e, w, _mm512_loadu_si512(v + 96));
        }
        _mm512_storeu_si512(sums + c, a);
        _mm512_storeu_si512(sums + c + 16, b);
        _mm512_storeu_si512(sums + c + 32, d);
        _mm512_storeu_si512(sums + c + 48, e);
    }
}

#define NAME(x) x##_vnni
#define MULTIPLY multiply_vnni
#define SCORES scores_vnni
#define MIX mix_vnni
#define MOST_ROWS 6
#include "kernels.h"

#pragma GCC pop_options
#endif

/* The checksum of the sources, by setup.py, so that a build of other sources is noticed. */
uint32_t waitinfo_sources(void) { return WAITINFO_SOURCES; }

/* The size of the structs, which library.py repeats. */
int waitinfo_layout(void) {
    return sizeof(Model) + sizeof(Layer) + sizeof(Embedding) + sizeof(Reading) + sizeof(Writing);
}

/* Which kinds of code this CPU can run: 0 plain C, 1 AVX2, 2 AVX-512 with VNNI. */
int waitinfo_best_kind(void) {
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2")) return 1;
#endif
    return 0;
}

#if X86
#define CALL(kind, name, ...)                   \
    do {                                        \
        if ((kind) == 2) name##_vnni(__VA_ARGS__);      \
        else if ((kind) == 1) name##_avx2(__VA_ARGS__); \
        else name##_plain(__VA_ARGS__);         \
    } while (0)
#else
#define CALL(kind, name, ...) name##_plain(__VA_ARGS__)
#endif

/* Bytes of a Linear's weights. */
int64_t waitinfo_packed_size(int32_t outputs, int32_t inputs) {
    int64_t blocks = (outputs + BLOCK - 1) / BLOCK, groups = (inputs + 3) / 4;
    return blocks * (groups * 4 * BLOCK + (int64_t)sizeof(Scaling));
}

/* Bring weights [outputs][inputs] into the order of a Linear, filled up with zeros. The weights of
 * repeated inputs come again behind the others. */
void waitinfo_pack(const int8_t *weights, int32_t outputs, int32_t inputs, const int32_t *repeated,
                   int32_t repeats, int32_t positive, const float *factor, const float *bias,
                   int8_t *packed) {
    int groups = (inputs + repeats + 3) / 4;
    Linear m = {.weights = packed, .groups = groups};
    memset(packed, 0, waitinfo_packed_size(outputs, inputs + repeats));
    for (int n = 0; n < outputs; n++) {
        int32_t sum = 0;
        int8_t *block = (int8_t *)block_of(&m, n);
        Scaling *scaling = (Scaling *)scaling_of(&m, block);
        for (int i = 0; i < inputs + repeats; i++) {
            int8_t w = weights[(size_t)n * inputs + (i < inputs ? i : repeated[i - inputs])];
            sum += w;
            block[((size_t)(i / 4) * BLOCK + n % BLOCK) * 4 + i % 4] = w;
        }
        scaling->shift[n % BLOCK] = positive ? 0 : 128 * sum;
        scaling->factor[n % BLOCK] = factor[n];
        scaling->bias[n % BLOCK] = bias ? bias[n] : 0;
    }
}

/* x W^T + b of rows x; `whole`: of whole numbers in -127 ... 127, which are not scaled. */
int waitinfo_linear(int kind, const Linear *m, int rows, const float *x, float *y, int whole) {
    Scratch s;
    if (!scratch_open(&s, rows, 1, 4 * m->groups, 1)) return 0;
    if (whole) {
        CALL(kind, take_whole, m, x, rows, s.bytes, s.largest);
        CALL(kind, apply, m, rows, y, 0, &s);
    } else
        CALL(kind, linear, m, x, rows, y, 0, &s);
    return 1;
}

static int widest(const Model *m) {
    int most = 3 * m->width;
    int memory = 2 * m->width * m->decoder_layers;
    if (memory > most) most = memory;
    for (int l = 0; l < m->encoder_layers; l++)
        if (m->encoder[l].inner.outputs > most) most = m->encoder[l].inner.outputs;
    for (int l = 0; l < m->decoder_layers; l++)
        if (m->decoder[l].inner.outputs > most) most = m->decoder[l].inner.outputs;
    return most;
}

/* Encode new source tokens x [rows][width], which is overwritten: token i at at[i] of row[i]. */
int waitinfo_encode(int kind, const Model *m, int rows, float *x, const int32_t *row,
                    const int32_t *at, const float *info, const Cache *caches,
                    const Cache *memories, int keys) {
    Scratch s;
    if (!scratch_open(&s, rows, m->width, widest(m), keys)) return 0;
    CALL(kind, encode, m, rows, x, row, at, info, caches, memories, &s);
    return 1;
}

/* Store what another encoder has made: keys and values x [rows][layers][2][width]. */
int waitinfo_remember(int kind, const Model *m, int rows, const float *x, const int32_t *row,
                      const int32_t *at, const Cache *memories) {
    CALL(kind, remember, m, rows, x, row, at, memories);
    return 1;
}

static int decode_rows(int kind, const Model *m, int rows, float *x, const int32_t *row,
                       const int32_t *at, const int32_t *visible, const float *info,
                       const float *bias, int bias_stride, const Cache *caches,
                       const Cache *memories, int keys, const Shares *shares) {
    Scratch s;
    if (!scratch_open(&s, rows, m->width, widest(m), keys)) return 0;
    CALL(kind, decode, m, rows, x, row, at, visible, info, bias, bias_stride, caches, memories,
         shares, &s);
    return 1;
}

/* One step of the decoder for some rows; x [rows][width] becomes the states. */
int waitinfo_decode(int kind, const Model *m, int rows, float *x, const int32_t *row,
                    const int32_t *at, const int32_t *visible, const float *info, const float *bias,
                    int bias_stride, const Cache *caches, const Cache *memories, int keys) {
    return decode_rows(kind, m, rows, x, row, at, visible, info, bias, bias_stride, caches,
                       memories, keys, 0);
}

int waitinfo_best(int kind, const Linear *m, int rows, const float *x, const int32_t *never,
                  int nevers, int32_t *best, float *value, float *all) {
    Scratch s;
    if (!scratch_open(&s, rows, 1, 4 * m->groups, 1)) return 0;
    CALL(kind, best, m, x, rows, never, nevers, best, value, all, &s);
    return 1;
}

/* Embed tokens at `later` positions behind `at`, with the embeddings of positions [..][width]. */
int waitinfo_embed(int kind, const Embedding *m, int rows, const int32_t *tokens, const int32_t *at,
                   int later, const float *positions, float *x, float *info) {
    Scratch s;
    if (!scratch_open(&s, PARTS * rows, 1, m->width, 1)) return 0;
    positions += (size_t)later * m->width;
    CALL(kind, embed, m, rows, tokens, at, positions, x, info, &s);
    return 1;
}

/* Embed and encode `count` source tokens, from the first one on; keep their info. */
int waitinfo_read(int kind, const Reading *r, int first, int count, int keys) {
    const Model *m = r->model;
    const int32_t *at = r->at + first;
    float *x = r->x + (size_t)first * m->width, *info = r->info ? r->info + first : 0;
    if (r->embedding && !waitinfo_embed(kind, r->embedding, count, r->token + first, at, 0,
                                        r->positions, x, info))
        return 0;
    if (!waitinfo_encode(kind, m, count, x, r->row + first, at, r->aware ? info : 0, r->caches,
                         r->memories, keys))
        return 0;
    for (int i = 0; i < count; i++) {
        const float *state = x + (size_t)i * m->width;
        uint32_t most = 0;
        for (int j = 0; j < m->width; j++) {
            uint32_t bits;
            memcpy(&bits, state + j, 4);
            bits &= 0x7fffffff;
            most = bits > most ? bits : most;
        }
        r->finite[first + i] = most < 0x7f800000;
        if (info) {
            size_t row = r->row[first + i];
            double *total = r->received + row * r->received_width + at[i];
            r->source_info[row * r->source_width + at[i]] = info[i];
            total[1] = total[0] + info[i];
        }
    }
    return 1;
}

/* One step of `count` rows, from the first one on: their best tokens, embedded as next inputs.
 * `narrow`: what they see is given; else it is all that they have read. */
int waitinfo_write(int kind, const Writing *w, int first, int count, int narrow) {
    const Model *m = w->model;
    size_t width = m->width, source_width = w->source_width;
    const int32_t *row = w->row + first;
    int32_t *at = w->at + first, *visible = w->visible + first, keys = 0;
    float *x = w->x + first * width, *info = w->info ? w->info + first : 0;
    float *bias = w->source_info ? w->bias + first * source_width : 0;
    for (int i = 0; i < count; i++) {
        at[i] = w->written[row[i]];
        if (!narrow) visible[i] = w->read[row[i]];
        keys = at[i] >= keys ? at[i] + 1 : keys;
        keys = visible[i] > keys ? visible[i] : keys;
        memcpy(x + i * width, w->next_x + row[i] * width, width * sizeof(float));
        if (info) info[i] = w->next_info[row[i]];
        if (bias)
            CALL(kind, consistency, w->source_info + row[i] * source_width, info[i], visible[i],
                 bias + i * source_width);
    }
    size_t weights = (size_t)m->decoder_layers * m->heads * w->shares_width; /* of a row */
    Shares shares = {w->shares ? w->shares + first * weights : 0, w->shares_width};
    if (!decode_rows(kind, m, count, x, row, at, visible, w->aware ? info : 0, bias, source_width,
                     w->caches, w->memories, keys, w->shares ? &shares : 0))
        return 0;
    int32_t *token = w->token + first;
    float *scored = w->scored ? w->scored + (size_t)first * w->scores->outputs : 0;
    if (!waitinfo_best(kind, w->scores, count, x, w->never, w->nevers, token, w->value + first,
                       scored))
        return 0;
    return !w->embedding ||
           waitinfo_embed(kind, w->embedding, count, token, at, 1, w->positions,
                          w->embedded_x + first * width, info ? w->embedded_info + first : 0);
}
