/* Everything that is computed, for one kind of CPU; included once for each of them.
 *
 * NAME(x) adds its suffix. MULTIPLY, SCORES and MIX are its parts, as in plain.h; MULTIPLY takes up to
 * MOST_ROWS rows, between BEGIN_PRODUCTS and END_PRODUCTS. RUNS says whether a CPU has what it takes,
 * ALL_IN_ONE that it has AVX-512: TOTAL, LARGEST, TOP and ANY are of the numbers of a vector, and HIGHER is
 * the first where it is above the second. */

#ifndef BEGIN_PRODUCTS
#define BEGIN_PRODUCTS
#define END_PRODUCTS
#endif

#ifdef ALL_IN_ONE
#define TOTAL(v) _mm512_reduce_add_ps((__m512)(v))
#define LARGEST(v) _mm512_reduce_max_ps((__m512)(v))
#define TOP(v) _mm512_reduce_max_epi32((__m512i)(v))
#define ANY(v) _mm512_test_epi32_mask((__m512i)(v), (__m512i)(v))
#define HIGHER(a, b) (Sixteen) _mm512_max_ps((__m512)(a), (__m512)(b))
#define HIGHER_WHOLE(a, b) (Whole) _mm512_max_epi32((__m512i)(a), (__m512i)(b))
#define FIRST(x, left) (Sixteen) _mm512_maskz_loadu_ps(_bzhi_u32(0xffff, (left) < KEYS ? (left) : KEYS), x)
#define WIDE(v) (Doubles) _mm512_cvtps_pd((__m256)(v))
#define NARROW(v) (Floats) _mm512_cvtpd_ps((__m512d)(v))
#else
#define TOTAL total_of
#define LARGEST largest_of
#define TOP top_of
#define ANY any_of
#define HIGHER(a, b) CHOOSE((a) > (b), a, b)
#define HIGHER_WHOLE(a, b) CHOOSE_WHOLE((a) > (b), a, b)
#define FIRST first_of
#define WIDE(v) __builtin_convertvector(v, Doubles)
#define NARROW(v) __builtin_convertvector(v, Floats)
#endif

#include "functions.h"
#include "products.h"
#include "attention.h"
#include "layers.h"
#include "embedding.h"

static const Kind NAME(kind) = {
    RUNS,           NAME(take_whole),   NAME(apply),    NAME(linear),
    NAME(encode),   NAME(encode_whole), NAME(remember), NAME(decode),
    NAME(best),     NAME(embed),        NAME(consistency),
    NAME(judge),
};

#undef NAME
#undef RUNS
#undef MULTIPLY
#undef SCORES
#undef MIX
#undef MOST_ROWS
#undef ALL_IN_ONE
#undef TOTAL
#undef LARGEST
#undef TOP
#undef ANY
#undef HIGHER
#undef HIGHER_WHOLE
#undef FIRST
#undef WIDE
#undef NARROW
#undef BEGIN_PRODUCTS
#undef END_PRODUCTS
