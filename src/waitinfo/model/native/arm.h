/* NEON: sums of four products (sdot), and products of two rows by two outputs (i8mm). */

#if defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16)
#include <arm_neon.h>
#ifdef __APPLE__
#include <sys/sysctl.h>

static int has(const char *feature) {
    int found = 0;
    size_t size = sizeof(found);
    return !sysctlbyname(feature, &found, &size, 0, 0) && found;
}

static int runs_sdot(void) { return has("hw.optional.arm.FEAT_DotProd"); }

static int runs_i8mm(void) { return runs_sdot() && has("hw.optional.arm.FEAT_I8MM"); }
#else
#include <sys/auxv.h>

static int runs_sdot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }

static int runs_i8mm(void) { return runs_sdot() && getauxval(AT_HWCAP2) >> 13 & 1; }
#endif

USE("arch=armv8.2-a+dotprod")

typedef int64_t __attribute__((may_alias, aligned(1))) eight; /* bytes */

/* Compilers would load more weights at a time than there are registers. */
#define LOAD_NO_EARLIER __asm__ volatile("" ::: "memory")

/* Sums of the first and of the last four inputs of two outputs each, which are added at the end. */
__attribute__((always_inline)) static inline void multiply_sdot_rows(
    const Byte *a, const int rows, int stride, const int8_t *weights, int groups, int32_t *sums) {
    for (int part = 0; part < BLOCK; part += 16) {
        int32x4_t acc[3][8];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < 8; j++) acc[r][j] = vdupq_n_s32(0);
        const int8_t *w = weights + 8 * part;
        for (int i = 0; i < 4 * groups; i += 8, w += 8 * BLOCK) {
            int8x16_t in[3];
            for (int r = 0; r < rows; r++)
                in[r] = vreinterpretq_s8_s64(vdupq_n_s64(*(const eight *)(a + r * stride + i)));
            for (int j = 0; j < 8; j++) {
                int8x16_t two = vld1q_s8(w + 16 * j);
                for (int r = 0; r < rows; r++) acc[r][j] = vdotq_s32(acc[r][j], two, in[r]);
                if (j % 2) LOAD_NO_EARLIER;
            }
        }
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < 8; j += 2)
                vst1q_s32(sums + r * BLOCK + part + 2 * j, vpaddq_s32(acc[r][j], acc[r][j + 1]));
    }
}

/* Streams of weights are asked for by these CPUs themselves, not `ahead`. */
static void multiply_sdot(const Byte *a, int rows, int stride, const int8_t *weights, int groups,
                          Ahead ahead, int32_t *sums) {
    switch (rows) {
    case 1: multiply_sdot_rows(a, 1, stride, weights, groups, sums); break;
    case 2: multiply_sdot_rows(a, 2, stride, weights, groups, sums); break;
    default: multiply_sdot_rows(a, 3, stride, weights, groups, sums);
    }
}

/* Add the products of eight numbers to four sums, which belong together. */
static inline int32x4_t add_eight(int32x4_t sums, int16x8_t a, const int16_t *numbers) {
    int16x8_t v = vld1q_s16(numbers);
    return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(a), vget_low_s16(v)), a, v);
}

static void scores_neon(const int16_t *query, const int16_t *keys, int length, int pieces,
                        const int16_t *next, int32_t *sums) {
    for (int j = 0; j < length; j += FOUR) {
        int32x4_t acc[FOUR];
        for (int i = 0; i < FOUR; i++) acc[i] = vdupq_n_s32(0);
        for (int p = 0; p < pieces; p++) {
            int16x8_t q = vld1q_s16(query + PIECE * p);
            __builtin_prefetch(next);
            next += FOUR * PIECE;
            for (int i = 0; i < FOUR; i++, keys += PIECE) acc[i] = add_eight(acc[i], q, keys);
        }
        vst1q_s32(sums + j, vpaddq_s32(vpaddq_s32(acc[0], acc[1]), vpaddq_s32(acc[2], acc[3])));
    }
}

/* Add products of pairs: two sums, which belong together, for every other number of `numbers`. */
static inline void add_pairs(int32x4_t *acc, int16x8_t two, const int16_t *numbers) {
    int16x8_t v = vld1q_s16(numbers);
    acc[0] = vmlal_s16(acc[0], vget_low_s16(v), vget_low_s16(two));
    acc[1] = vmlal_high_s16(acc[1], v, two);
}

static void mix_neon(const int16_t *weights, const int16_t *values, int length, int width,
                     const int16_t *next, int32_t *sums) {
    if (width % 16) {
        mix_plain(weights, values, length, width, next, sums);
        return;
    }
    for (int c = 0; c < width; c += 16) {
        int32x4_t acc[8];
        for (int i = 0; i < 8; i++) acc[i] = vdupq_n_s32(0);
        for (int j = 0; j < length; j += 2) {
            int32_t pair;
            memcpy(&pair, weights + j, 4);
            int16x8_t two = vreinterpretq_s16_s32(vdupq_n_s32(pair));
            size_t at = (size_t)j * width + 2 * c;
            __builtin_prefetch(next + at);
            for (int i = 0; i < 4; i++) add_pairs(acc + 2 * i, two, values + at + 8 * i);
        }
        for (int i = 0; i < 4; i++)
            vst1q_s32(sums + c + 4 * i, vpaddq_s32(acc[2 * i], acc[2 * i + 1]));
    }
}

#define NAME(x) x##_sdot
#define RUNS runs_sdot
#define MULTIPLY multiply_sdot
#define SCORES scores_neon
#define MIX mix_neon
#define MOST_ROWS 3
#include "kind.h"

USED
#define SDOT &kind_sdot

USE("arch=armv8.2-a+dotprod+i8mm")

/* Pairs of rows; the row behind an odd last one is computed for nothing. */
__attribute__((always_inline)) static inline void multiply_i8mm_pairs(
    const Byte *a, const int pairs, int stride, const int8_t *weights, int groups, int32_t *sums) {
    for (int part = 0; part < BLOCK; part += 16) {
        int32x4_t acc[3][8]; /* two outputs of a row, and of the next */
        for (int p = 0; p < pairs; p++)
            for (int j = 0; j < 8; j++) acc[p][j] = vdupq_n_s32(0);
        const int8_t *w = weights + 8 * part;
        for (int i = 0; i < 4 * groups; i += 8, w += 8 * BLOCK) {
            int8x16_t in[3];
            for (int p = 0; p < pairs; p++) {
                const int8_t *row = a + 2 * p * stride + i;
                in[p] = vcombine_s8(vld1_s8(row), vld1_s8(row + stride));
            }
            for (int j = 0; j < 8; j++) {
                int8x16_t two = vld1q_s8(w + 16 * j);
                for (int p = 0; p < pairs; p++) acc[p][j] = vmmlaq_s32(acc[p][j], in[p], two);
                if (j % 2) LOAD_NO_EARLIER;
            }
        }
        for (int p = 0; p < pairs; p++)
            for (int j = 0; j < 8; j += 2) {
                int64x2_t one = vreinterpretq_s64_s32(acc[p][j]);
                int64x2_t two = vreinterpretq_s64_s32(acc[p][j + 1]);
                int32_t *to = sums + 2 * p * BLOCK + part + 2 * j;
                vst1q_s32(to, vreinterpretq_s32_s64(vzip1q_s64(one, two)));
                vst1q_s32(to + BLOCK, vreinterpretq_s32_s64(vzip2q_s64(one, two)));
            }
    }
}

static void multiply_i8mm(const Byte *a, int rows, int stride, const int8_t *weights, int groups,
                          Ahead ahead, int32_t *sums) {
    switch (rows) {
    case 1: multiply_sdot_rows(a, 1, stride, weights, groups, sums); break;
    case 2: multiply_i8mm_pairs(a, 1, stride, weights, groups, sums); break;
    case 3:
    case 4: multiply_i8mm_pairs(a, 2, stride, weights, groups, sums); break;
    default: multiply_i8mm_pairs(a, 3, stride, weights, groups, sums);
    }
}

#define NAME(x) x##_i8mm
#define RUNS runs_i8mm
#define MULTIPLY multiply_i8mm
#define SCORES scores_neon
#define MIX mix_neon
#define MOST_ROWS 6
#include "kind.h"

USED
#define I8MM &kind_i8mm
#endif

#ifndef SDOT
#define SDOT NULL
#define I8MM NULL
#endif
