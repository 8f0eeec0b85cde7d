/* Everything that is computed, for one kind of CPU; included once for each of them.
 *
 * NAME(x) adds its suffix. MULTIPLY, SCORES and MIX are its parts, as in plain.h; MULTIPLY takes up to
 * MOST_ROWS rows, between BEGIN_PRODUCTS and END_PRODUCTS. TOTAL, LARGEST, TOP and ANY are of the numbers
 * of a vector. RUNS says whether a CPU has what it takes. */

#ifndef BEGIN_PRODUCTS
#define BEGIN_PRODUCTS
#define END_PRODUCTS
#endif

#ifndef TOTAL
#define TOTAL total_of
#define LARGEST largest_of
#define TOP top_of
#define ANY any_of
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
#undef TOTAL
#undef LARGEST
#undef TOP
#undef ANY
#undef BEGIN_PRODUCTS
#undef END_PRODUCTS
