/* NEON. */

#define SDOT NULL
#define I8MM NULL
