/* Stands before the C library: counts what a program allocates, frees and reads from the environment between
 * side_effects_begin() and side_effects_end(). Memory comes from one block and is never given back. */
#include <stddef.h>
#include <string.h>

static _Alignas(64) unsigned char block[1 << 24];
static size_t used;
static long   count;
static int    counting;

void side_effects_begin(void) { counting = 1; }
long side_effects_end(void) { counting = 0; return count; }

static void *take(size_t alignment, size_t bytes) { /* the size stands before the memory */
    size_t at = (used + sizeof(size_t) + alignment - 1) / alignment * alignment;
    count += counting;
    if (bytes > sizeof block || at > sizeof block - bytes) return NULL;
    memcpy(block + at - sizeof bytes, &bytes, sizeof bytes);
    used = at + bytes;
    return block + at;
}

void *malloc(size_t bytes) { return take(64, bytes); }
void *calloc(size_t items, size_t bytes) { return take(64, items * bytes); /* the block is zero */ }
void *aligned_alloc(size_t alignment, size_t bytes) { return take(alignment < 64 ? 64 : alignment, bytes); }
void *memalign(size_t alignment, size_t bytes) { return take(alignment < 64 ? 64 : alignment, bytes); }
void *valloc(size_t bytes) { return take(4096, bytes); }
int posix_memalign(void **memory, size_t alignment, size_t bytes) { return (*memory = aligned_alloc(alignment, bytes)) == NULL; }
void free(void *memory) { (void)memory; count += counting; }
void *realloc(void *memory, size_t bytes) {
    void  *moved = take(64, bytes);
    size_t old = 0;
    if (memory != NULL) memcpy(&old, (unsigned char *)memory - sizeof old, sizeof old);
    return moved == NULL || memory == NULL ? moved : memcpy(moved, memory, old < bytes ? old : bytes);
}
char *getenv(const char *name) { (void)name; count += counting; return NULL; }
char *secure_getenv(const char *name) { return getenv(name); }
