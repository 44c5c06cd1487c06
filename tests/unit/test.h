/* Tests in C or C++: a program is one file that includes this.
 *
 *     TEST(suite, name) { ASSERT_EQ(sum(2, 2), 4); }     as many as there are; nothing lists them
 *     TEST_MAIN()                                        once, anywhere
 *
 * They run in the order of their lines, and each prints one line: "ok SUITE.NAME 12 ms", "not ok SUITE.NAME 12 ms" or
 * "skip SUITE.NAME REASON", after a line "begin SUITE.NAME" that says where a program broke off. The last line counts. The exit
 * status is 1 if a test failed or none was selected, and 2 for an option that is not one of these:
 *
 *     --filter=PATTERN   those whose SUITE.NAME is PATTERN, in which * stands for anything
 *     --shuffle=SEED     in another order; without =SEED the clock gives one, which is printed
 *     --list             their names alone
 *
 * What fails prints file, line, the condition and both values, and returns from its function. A test helper is a function that
 * returns nothing; its caller goes on after it, or, with ASSERT_PASSING(), returns as well once something has failed. Numbers
 * of unlike types are compared as the numbers that they are: a long double holds every 64-bit integer and every double. */
#ifndef TEGROUP_TESTS_TEST_H
#define TEGROUP_TESTS_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct test {
    const char *name; /* SUITE.NAME */
    int line;
    void (*run)(void);
    struct test *next; /* the list is in the order of lines */
} test;

static test *test_list;
static int test_failed;              /* 1: something in the running test did */
static const char *test_skip_reason; /* of the running test, or NULL */

static inline void test_register(test *new_test) {
    test **at = &test_list;
    while (*at != NULL && (*at)->line < new_test->line) at = &(*at)->next;
    new_test->next = *at;
    *at = new_test;
}

#define TEST(suite, title)                                                                                       \
    static void test_run_##suite##_##title(void);                                                                \
    __attribute__((constructor)) static void test_register_##suite##_##title(void) {                             \
        static test self = {#suite "." #title, __LINE__, test_run_##suite##_##title, NULL};                      \
        test_register(&self);                                                                                    \
    }                                                                                                            \
    static void test_run_##suite##_##title(void)

#define TEST_MAIN() int main(int argc, char **argv) { return test_main(argc, argv); }

#define TEST_FAIL(...) do { printf("%s:%d: ", __FILE__, __LINE__); printf(__VA_ARGS__); test_failed = 1; return; } while (0)
#define TEST_COMPARE(a, operation, b, text)                                                                      \
    do {                                                                                                         \
        const long double test_a = (a), test_b = (b);                                                            \
        if (!(test_a operation test_b)) TEST_FAIL("wanted %s; they are %.20Lg and %.20Lg\n", text, test_a, test_b); \
    } while (0)
#define TEST_COMPARE_TEXTS(a, operation, b, text)                                                                \
    do {                                                                                                         \
        const char *test_a = (a), *test_b = (b);                                                                 \
        if (test_a == NULL || test_b == NULL || !(strcmp(test_a, test_b) operation 0))                           \
            TEST_FAIL("wanted %s; they are \"%s\" and \"%s\"\n", text, test_a ? test_a : "NULL", test_b ? test_b : "NULL"); \
    } while (0)

#define ASSERT_EQ(a, b) TEST_COMPARE(a, ==, b, #a " == " #b)
#define ASSERT_NE(a, b) TEST_COMPARE(a, !=, b, #a " != " #b)
#define ASSERT_LT(a, b) TEST_COMPARE(a, <, b, #a " < " #b)
#define ASSERT_LE(a, b) TEST_COMPARE(a, <=, b, #a " <= " #b)
#define ASSERT_GT(a, b) TEST_COMPARE(a, >, b, #a " > " #b)
#define ASSERT_GE(a, b) TEST_COMPARE(a, >=, b, #a " >= " #b)
#define ASSERT_STREQ(a, b) TEST_COMPARE_TEXTS(a, ==, b, #a " == " #b)
#define ASSERT_STRNE(a, b) TEST_COMPARE_TEXTS(a, !=, b, #a " != " #b)
#define ASSERT_TRUE(condition) do { if (!(condition)) TEST_FAIL("wanted %s\n", #condition); } while (0)
#define ASSERT_FALSE(condition) ASSERT_TRUE(!(condition))
#define ASSERT_PASSING() do { if (test_failed) return; } while (0)
#define SKIP(reason) do { test_skip_reason = (reason); return; } while (0)

static inline int test_matches(const char *pattern, const char *name) {
    if (*pattern == '*') return test_matches(pattern + 1, name) || (*name != 0 && test_matches(pattern, name + 1));
    return *pattern == *name && (*name == 0 || test_matches(pattern + 1, name + 1));
}

static inline int test_count(const char *pattern) { /* of tests that it matches */
    int count = 0;
    for (test *t = test_list; t != NULL; t = t->next) count += test_matches(pattern, t->name);
    return count;
}

static inline double test_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The list in an order that the seed draws: one test after another is taken out of what is left. */
static inline void test_shuffle(unsigned long long seed) {
    test *left = test_list, *shuffled = NULL;
    printf("shuffled by --shuffle=%llu\n", seed);
    for (int count = test_count("*"); count > 0; count--) {
        test **at = &left, *taken;
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        for (int skip = (int)((seed >> 33) % (unsigned)count); skip > 0; skip--) at = &(*at)->next;
        taken = *at;
        *at = taken->next;
        taken->next = shuffled;
        shuffled = taken;
    }
    test_list = shuffled;
}

static inline int test_main(int argc, char **argv) {
    const char *filter = "*";
    int count[3] = {0, 0, 0}, list = 0; /* passed, failed, skipped */
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--filter=", 9) == 0) filter = argv[i] + 9;
        else if (strncmp(argv[i], "--shuffle=", 10) == 0) test_shuffle(strtoull(argv[i] + 10, NULL, 10));
        else if (strcmp(argv[i], "--shuffle") == 0) test_shuffle((unsigned long long)time(NULL));
        else if (strcmp(argv[i], "--list") == 0) list = 1;
        else return fprintf(stderr, "%s: unknown; there are --filter=PATTERN, --shuffle[=SEED] and --list\n", argv[i]), 2;
    }
    for (test *t = test_list; t != NULL; t = t->next) {
        if (!test_matches(filter, t->name)) continue;
        if (list) { puts(t->name); continue; }
        const double begin = test_now_ms();
        printf("begin %s\n", t->name);
        fflush(stdout);
        test_failed = 0;
        test_skip_reason = NULL;
        t->run();
        count[test_failed ? 1 : test_skip_reason != NULL ? 2 : 0]++;
        if (test_skip_reason != NULL && !test_failed) printf("skip %s %s\n", t->name, test_skip_reason);
        else printf("%s %s %.0f ms\n", test_failed ? "not ok" : "ok", t->name, test_now_ms() - begin);
    }
    if (list) return 0;
    printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    return count[1] > 0 || count[0] + count[2] == 0;
}

#endif
