/* train_moe's text: reading it, splitting it, and the byte bigram that the model has to beat. */

enum { SHORTEST_TEXT = 1000 };

typedef struct text {
    uint8_t *bytes;
    int64_t  size;
    int64_t  train_end; /* training sees [0, train_end); the last tenth is held out */
} text;

/* Read the whole of an open file. Returns 0 when that fails. */
static int read_all(FILE *file, text *t)
{
    size_t capacity = 0, size = 0, got;
    uint8_t *bytes = NULL;
    do {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 20;
            uint8_t *grown = realloc(bytes, capacity);
            if (!grown) break;
            bytes = grown;
        }
        got = fread(bytes + size, 1, capacity - size, file);
        size += got;
    } while (got > 0);
    t->bytes = bytes;
    t->size = (int64_t)size;
    return feof(file) && !ferror(file);
}

/* Returns 0 after one line on stderr when the file cannot be used. */
static int text_load(text *t, const char *path)
{
    FILE *file = fopen(path, "rb");
    memset(t, 0, sizeof *t);
    if (!file) {
        fprintf(stderr, "train_moe: cannot open '%s': %s\n", path, strerror(errno));
        return 0;
    }
    const int complete = read_all(file, t);
    if (!complete) fprintf(stderr, "train_moe: cannot read '%s'\n", path);
    else if (t->size < SHORTEST_TEXT)
        fprintf(stderr, "train_moe: '%s' holds %lld bytes, at least %d are needed\n", path, (long long)t->size,
            SHORTEST_TEXT);
    fclose(file);
    t->train_end = t->size - t->size / 10;
    if (complete && t->size >= SHORTEST_TEXT) return 1;
    free(t->bytes);
    return 0;
}

/* Loss, in nats a held-out byte, of P(byte | byte before) counted on the training bytes, one added to each count. */
static double bigram_loss(const text *t)
{
    static double pairs[256][256], firsts[256];
    double loss = 0;
    memset(pairs, 0, sizeof pairs);
    memset(firsts, 0, sizeof firsts);
    for (int64_t i = 1; i < t->train_end; i++) {
        pairs[t->bytes[i - 1]][t->bytes[i]]++;
        firsts[t->bytes[i - 1]]++;
    }
    for (int64_t i = t->train_end; i < t->size; i++) {
        const uint8_t before = t->bytes[i - 1];
        loss -= log((pairs[before][t->bytes[i]] + 1) / (firsts[before] + 256));
    }
    return loss / (double)(t->size - t->train_end);
}
