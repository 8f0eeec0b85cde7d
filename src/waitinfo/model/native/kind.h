/* Everything that is computed, for one kind of CPU; included once for each of them.
 *
 * NAME(x) adds its suffix. MULTIPLY, SCORES and MIX are its parts, as in plain.h; MULTIPLY takes up to
 * MOST_ROWS rows, between BEGIN_PRODUCTS and END_PRODUCTS. RUNS says whether a CPU has what it takes. */

#ifndef BEGIN_PRODUCTS
#define BEGIN_PRODUCTS
#define END_PRODUCTS
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
};

#undef NAME
#undef RUNS
#undef MULTIPLY
#undef SCORES
#undef MIX
#undef MOST_ROWS
#undef BEGIN_PRODUCTS
#undef END_PRODUCTS
