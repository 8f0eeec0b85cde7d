/* AVX2, AVX-VNNI, AVX-512 with VNNI, and AMX. */

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int runs_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }

USE("avx2")

__attribute__((always_inline)) static inline void multiply_avx2_rows(
    const uint8_t *a, const int rows, int stride, const int8_t *weights, int groups, Ahead ahead,
    int32_t *sums) {
    for (int part = 0; part < BLOCK; part += 16) { /* as many outputs as fit the registers */
        __m256i acc[2][4];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[r][j] = _mm256_setzero_si256();
        for (int g = 0; g < groups; g++) {
            const int8_t *w = weights + ((size_t)g * BLOCK + part) * 4;
            if (!part) { /* the other parts find them in a cache */
                __builtin_prefetch(ahead.weights + (size_t)g * ahead.step, 0, 2);
                __builtin_prefetch(ahead.weights + (size_t)g * ahead.step + 128, 0, 2);
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

static void multiply_avx2(const uint8_t *a, int rows, int stride, const int8_t *weights, int groups,
                          Ahead ahead, int32_t *sums) {
    if (rows == 1)
        multiply_avx2_rows(a, 1, stride, weights, groups, ahead, sums);
    else
        multiply_avx2_rows(a, 2, stride, weights, groups, ahead, sums);
}

/* Of up to eight keys: four sums for each of two keys. */
__attribute__((always_inline)) static inline void scores_avx2_fours(
    const int16_t *query, const int16_t *keys, const int fours, int pieces, const int16_t *next,
    int32_t *sums) {
    __m256i acc[4] = {0};
    for (int p = 0; p < pieces; p++, keys += FOUR * PIECE, next += fours * FOUR * PIECE) {
        __m256i q = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(query + PIECE * p)));
        for (int i = 0; i < 2 * fours; i++) {
            if (i % 2 == 0) __builtin_prefetch(next + i * 2 * PIECE);
            const int16_t *two = keys + (i / 2 * pieces * FOUR + i % 2 * 2) * PIECE;
            __m256i k = _mm256_loadu_si256((const void *)two);
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(q, k));
        }
    }
    __m256i low = _mm256_hadd_epi32(acc[0], acc[1]), high = _mm256_hadd_epi32(acc[2], acc[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(low, high), order);
    _mm256_storeu_si256((void *)sums, all);
}

static void scores_avx2(const int16_t *query, const int16_t *keys, int length, int pieces,
                        const int16_t *next, int32_t *sums) {
    int size = 2 * FOUR * pieces * PIECE;
    for (; length > FOUR; length -= 2 * FOUR, sums += 2 * FOUR, keys += size, next += size)
        scores_avx2_fours(query, keys, 2, pieces, next, sums);
    if (length > 0) scores_avx2_fours(query, keys, 1, pieces, next, sums);
}

static void mix_avx2(const int16_t *weights, const int16_t *values, int length, int width,
                     const int16_t *next, int32_t *sums) {
    if (width % 32) {
        mix_plain(weights, values, length, width, next, sums);
        return;
    }
    for (int c = 0; c < width; c += 32) {
        __m256i acc[4];
        for (int i = 0; i < 4; i++) acc[i] = _mm256_setzero_si256();
        for (int j = 0; j < length; j += 2) {
            int32_t pair;
            memcpy(&pair, weights + j, 4);
            __m256i w = _mm256_set1_epi32(pair);
            const int16_t *v = values + (size_t)j * width + 2 * c;
            __builtin_prefetch(next + (size_t)j * width + 2 * c);
            __builtin_prefetch(next + (size_t)j * width + 2 * c + 32);
            for (int i = 0; i < 4; i++) {
                __m256i two = _mm256_loadu_si256((const void *)(v + 16 * i));
                acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(w, two));
            }
        }
        for (int i = 0; i < 4; i++) _mm256_storeu_si256((void *)(sums + c + 8 * i), acc[i]);
    }
}

#define NAME(x) x##_avx2
#define RUNS runs_avx2
#define MULTIPLY multiply_avx2
#define SCORES scores_avx2
#define MIX mix_avx2
#define MOST_ROWS 2
#include "kind.h"

USED
#define AVX2 &kind_avx2

#if __GNUC__ >= 11 || __clang_major__ >= 12
static int runs_avxvnni(void) {
    unsigned a = 0, b, c, d;
    return runs_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

USE("avx2,avxvnni")

__attribute__((always_inline)) static inline void multiply_avxvnni_rows(
    const uint8_t *a, const int rows, int stride, const int8_t *weights, int groups, Ahead ahead,
    int32_t *sums) {
    for (int part = 0; part < BLOCK; part += 32) {
        __m256i acc[3][4];
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[r][j] = _mm256_setzero_si256();
        for (int g = 0; g < groups; g++) {
            const int8_t *w = weights + ((size_t)g * BLOCK + part) * 4;
            __builtin_prefetch(ahead.weights + (size_t)g * ahead.step + 4 * part, 0, 2);
            __m256i in[3];
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, a + (size_t)r * stride + 4 * g, 4);
                in[r] = _mm256_set1_epi32(four);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                __m256i eight = _mm256_loadu_si256((const void *)(w + 32 * j));
#pragma GCC unroll 3
                for (int r = 0; r < rows; r++) /* in assembly, as below */
                    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc[r][j]) : "x"(in[r]), "x"(eight));
            }
        }
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                _mm256_storeu_si256((void *)(sums + r * BLOCK + part + 8 * j), acc[r][j]);
    }
}

static void multiply_avxvnni(const uint8_t *a, int rows, int stride, const int8_t *weights,
                             int groups, Ahead ahead, int32_t *sums) {
    switch (rows) {
    case 1: multiply_avxvnni_rows(a, 1, stride, weights, groups, ahead, sums); break;
    case 2: multiply_avxvnni_rows(a, 2, stride, weights, groups, ahead, sums); break;
    default: multiply_avxvnni_rows(a, 3, stride, weights, groups, ahead, sums);
    }
}

#define NAME(x) x##_avxvnni
#define RUNS runs_avxvnni
#define MULTIPLY multiply_avxvnni
#define SCORES scores_avx2
#define MIX mix_avx2
#define MOST_ROWS 3
#include "kind.h"

USED
#define AVXVNNI &kind_avxvnni
#endif

static int runs_avx512(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("bmi2");
}

USE("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")

/* In assembly, since compilers keep the sums in memory otherwise. */
#define ADD_PRODUCTS(sum, in, w) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(in), "v"(w))

__attribute__((always_inline)) static inline void multiply_avx512_rows(
    const uint8_t *a, const int rows, int stride, const int8_t *weights, int groups, Ahead ahead,
    int32_t *sums) {
    __m512i acc[6][4];
    const char *piece = (const char *)weights;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) acc[r][j] = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        const int8_t *w = weights + (size_t)g * BLOCK * 4;
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        __m512i w2 = _mm512_loadu_si512(w + 128), w3 = _mm512_loadu_si512(w + 192);
        /* Into the second level of caches, and every other line: its neighbour comes with it. */
        _mm_prefetch((const char *)ahead.weights, _MM_HINT_T1);
        if (rows < 6)
            _mm_prefetch((const char *)ahead.weights + 128, _MM_HINT_T1);
        else {
            if (g % LINES == 0 && ahead.pieces) piece = ahead.pieces[g / LINES];
            _mm_prefetch(piece + g % LINES * LINE, _MM_HINT_T1);
        }
        ahead.weights += ahead.step;
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

static void multiply_avx512(const uint8_t *a, int rows, int stride, const int8_t *weights,
                            int groups, Ahead ahead, int32_t *sums) {
    switch (rows) {
    case 1: multiply_avx512_rows(a, 1, stride, weights, groups, ahead, sums); break;
    case 2: multiply_avx512_rows(a, 2, stride, weights, groups, ahead, sums); break;
    case 3: multiply_avx512_rows(a, 3, stride, weights, groups, ahead, sums); break;
    case 4: multiply_avx512_rows(a, 4, stride, weights, groups, ahead, sums); break;
    case 5: multiply_avx512_rows(a, 5, stride, weights, groups, ahead, sums); break;
    default: multiply_avx512_rows(a, 6, stride, weights, groups, ahead, sums);
    }
}

/* Of up to a block of keys: four sums for each of four keys. */
__attribute__((always_inline)) static inline void scores_avx512_fours(
    const int16_t *query, const int16_t *keys, const int fours, int pieces, const int16_t *next,
    int32_t *sums) {
    __m512i acc[4];
    for (int i = 0; i < 4; i++) acc[i] = _mm512_setzero_si512();
    for (int p = 0; p < pieces; p++, keys += FOUR * PIECE) {
        __m512i q = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(query + PIECE * p)));
#pragma GCC unroll 4
        for (int i = 0; i < fours; i++, next += FOUR * PIECE) {
            __builtin_prefetch(next);
            __m512i k = _mm512_loadu_si512(keys + i * pieces * FOUR * PIECE);
            acc[i] = _mm512_dpwssd_epi32(acc[i], q, k);
        }
    }
    __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[0], acc[1]),
                                   _mm512_unpackhi_epi32(acc[0], acc[1]));
    __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[2], acc[3]),
                                    _mm512_unpackhi_epi32(acc[2], acc[3]));
    __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(sums, _mm512_permutexvar_epi32(order, all));
}

static void scores_avx512(const int16_t *query, const int16_t *keys, int length, int pieces,
                          const int16_t *next, int32_t *sums) {
    int size = KEYS * pieces * PIECE;
    for (; length > 3 * FOUR; length -= KEYS, sums += KEYS, keys += size, next += size)
        scores_avx512_fours(query, keys, 4, pieces, next, sums);
    switch ((length + FOUR - 1) / FOUR) {
    case 3: scores_avx512_fours(query, keys, 3, pieces, next, sums); break;
    case 2: scores_avx512_fours(query, keys, 2, pieces, next, sums); break;
    case 1: scores_avx512_fours(query, keys, 1, pieces, next, sums);
    }
}

static void mix_avx512(const int16_t *weights, const int16_t *values, int length, int width,
                       const int16_t *next, int32_t *sums) {
    if (width % 64) {
        mix_avx2(weights, values, length, width, next, sums);
        return;
    }
    for (int c = 0; c < width; c += 64) {
        __m512i acc[4];
        for (int i = 0; i < 4; i++) acc[i] = _mm512_setzero_si512();
        for (int j = 0; j < length; j += 2) {
            __m512i w = _mm512_set1_epi32(*(const pair *)(weights + j));
            size_t at = (size_t)j * width + 2 * c;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                acc[i] = _mm512_dpwssd_epi32(acc[i], w, _mm512_loadu_si512(values + at + 32 * i));
                __builtin_prefetch(next + at + 32 * i);
            }
        }
        for (int i = 0; i < 4; i++) _mm512_storeu_si512(sums + c + 16 * i, acc[i]);
    }
}

#define NAME(x) x##_avx512
#define ALL_IN_ONE
#define RUNS runs_avx512
#define MULTIPLY multiply_avx512
#define SCORES scores_avx512
#define MIX mix_avx512
#define MOST_ROWS 6
#include "kind.h"

USED
#define AVX512 &kind_avx512

#if defined(SYS_arch_prctl) && (__GNUC__ >= 11 || __clang_major__ >= 12)
/* Linux gives tiles to a process that asks for them. */
static int runs_amx(void) {
    unsigned a, b, c, d = 0;
    const int ask = 0x1023, tiles = 18;
    return runs_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & d >> 25 & 1 &&
           !syscall(SYS_arch_prctl, ask, tiles);
}

USE("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2,amx-tile,amx-int8")

/* The eight tiles have 16 rows of 64 bytes each: 64 inputs of 16 rows, weights of 16 groups and 16
 * outputs, or 16 sums of 16 rows. The weights' order is that of a block already. */
static void begin_tiles(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
    _tile_loadconfig(&tiles);
}

/* Rows are filled up to whole tiles by what lies behind them. */
static void multiply_amx(const uint8_t *a, int rows, int stride, const int8_t *weights, int groups,
                         Ahead ahead, int32_t *sums) {
    const int most = (groups + 15) / 16, across = 4 * BLOCK;
    if (rows <= 16) { /* all outputs of a block at once */
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int g = 0; g < most; g++, weights += 16 * across, a += 64) {
            for (int i = 0; i < 16; i++) {
                _mm_prefetch((const char *)ahead.weights, _MM_HINT_T1);
                if (ahead.step > 128) _mm_prefetch((const char *)ahead.weights + 128, _MM_HINT_T1);
                ahead.weights += ahead.step;
            }
            _tile_loadd(4, a, stride);
            _tile_loadd(5, weights, across);
            _tile_dpbusd(0, 4, 5);
            _tile_loadd(6, weights + 64, across);
            _tile_dpbusd(1, 4, 6);
            _tile_loadd(7, weights + 128, across);
            _tile_dpbusd(2, 4, 7);
            _tile_loadd(5, weights + 192, across);
            _tile_dpbusd(3, 4, 5);
        }
        _tile_stored(0, sums, across);
        _tile_stored(1, sums + 16, across);
        _tile_stored(2, sums + 32, across);
        _tile_stored(3, sums + 48, across);
        return;
    }
    for (int half = 0; half < 2; half++) { /* two tiles of rows with two of outputs */
        const uint8_t *in = a;
        const int8_t *w = weights + 128 * half;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int g = 0; g < most; g++, w += 16 * across, in += 64) {
            for (int i = 0; i < 8; i++, ahead.weights += ahead.step)
                _mm_prefetch((const char *)ahead.weights, _MM_HINT_T1);
            _tile_loadd(4, in, stride);
            _tile_loadd(6, w, across);
            _tile_dpbusd(0, 4, 6);
            _tile_loadd(5, in + 16 * stride, stride);
            _tile_dpbusd(2, 5, 6);
            _tile_loadd(7, w + 64, across);
            _tile_dpbusd(1, 4, 7);
            _tile_dpbusd(3, 5, 7);
        }
        _tile_stored(0, sums + 32 * half, across);
        _tile_stored(1, sums + 32 * half + 16, across);
        _tile_stored(2, sums + 32 * half + 16 * BLOCK, across);
        _tile_stored(3, sums + 32 * half + 16 * BLOCK + 16, across);
    }
}

#define NAME(x) x##_amx
#define ALL_IN_ONE
#define RUNS runs_amx
#define MULTIPLY multiply_amx
#define SCORES scores_avx512
#define MIX mix_avx512
#define MOST_ROWS TILE_ROWS
#define BEGIN_PRODUCTS begin_tiles()
#define END_PRODUCTS _tile_release()
#include "kind.h"

USED
#define AMX &kind_amx
#endif
#endif

#ifndef AVX2
#define AVX2 NULL
#define AVX512 NULL
#endif
#ifndef AVXVNNI
#define AVXVNNI NULL
#endif
#ifndef AMX
#define AMX NULL
#endif
