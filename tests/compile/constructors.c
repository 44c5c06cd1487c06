/* The constructors as C and as C++. Exits with the number of the first that returns something else than what is written
 * out by hand. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include "constructors.h"

int main(void) { return constructors_wrong(); }
