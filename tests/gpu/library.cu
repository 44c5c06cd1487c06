/* The library, compiled once for the GPU tests that are linked with it, and what they ask of its insides. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_EXTERN
#include "inside.h"
