/* attnkit_check VECTORS OUTPUTS: hold OUTPUTS/CASE/out/NAME.bin to the golden vectors in VECTORS.
 *
 * Right is y == expected or |y - expected| <= tau, for every element; NaN is right only where NaN is expected.
 * Exit codes: 0 verified, 1 not, 2 wrong use. Needs C99 and nothing else: cc -std=c99 attnkit_check.c -lm
 * Part of attnkit. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIGHT, WRONG, MISSING, REFUSED, FIELD = 256, PATH = 2048 };

/* Read `width` little-endian bytes at a time, whatever the order of this machine is. */
static uint64_t bits_at(const unsigned char *bytes, size_t index, int width) {
    uint64_t bits = 0;
    for (int n = width; n-- > 0;) bits = bits << 8 | bytes[index * (size_t)width + (size_t)n];
    return bits;
}

static double half(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023), sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return sign * (fraction ? NAN : INFINITY);
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double number_at(const unsigned char *bytes, size_t index, const char *dtype) {
    if (!strcmp(dtype, "float16")) return half(bits_at(bytes, index, 2));
    if (!strcmp(dtype, "float64")) {
        double number;
        memcpy(&number, &(uint64_t){bits_at(bytes, index, 8)}, sizeof number);
        return number;
    }
    int narrow = !strcmp(dtype, "bfloat16");
    uint32_t bits = (uint32_t)bits_at(bytes, index, narrow ? 2 : 4) << (narrow ? 16 : 0);
    float number;  /* bfloat16 is the upper half of it */
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Read a file that must have exactly `size` bytes; NULL where it has not, and then `there` tells if there is one. */
static unsigned char *read_file(const char *path, size_t size, int *there) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = NULL;
    *there = file != NULL;
    if (!file) return NULL;
    if ((bytes = malloc(size + 1)) && fread(bytes, 1, size + 1, file) != size) free(bytes), bytes = NULL;
    fclose(file);
    return bytes;
}

static int check(const char *vectors, const char *outputs, const char *name, const char *array, const char *dtype,
                 size_t count, const char *file) {
    char path[PATH];
    int there, status = RIGHT, width = !strcmp(dtype, "float64") ? 8 : !strcmp(dtype, "float32") ? 4 : 2;
    snprintf(path, sizeof path, "%s/%s/out/refused.txt", outputs, name);
    free(read_file(path, 0, &there));
    if (there) return printf("refused  %s %s\n", name, array), REFUSED;
    snprintf(path, sizeof path, "%s/%s", vectors, file);
    unsigned char *expected = read_file(path, count * 8, &there);
    snprintf(path, sizeof path, "%s/%.*s_tau.bin", vectors, (int)strlen(file) - 4, file);
    unsigned char *tau = read_file(path, count * 8, &there);
    if (!expected || !tau) fprintf(stderr, "%s is missing or of the wrong size\n", path), exit(2);
    snprintf(path, sizeof path, "%s/%s/out/%s.bin", outputs, name, array);
    unsigned char *given = read_file(path, count * (size_t)width, &there);
    if (!given) printf("%s %s: must be %zu bytes\n", there ? "WRONG   " : "MISSING ", path, count * (size_t)width);
    status = given ? RIGHT : there ? WRONG : MISSING;
    for (size_t i = 0; given && i < count && status == RIGHT; i++) {
        double y = number_at(given, i, dtype), o = number_at(expected, i, "float64"), t = number_at(tau, i, "float64");
        if (y == o || fabs(y - o) <= t || (isnan(y) && isnan(o))) continue;
        printf("WRONG    %s %s: element %zu: expected %.9g, got %.9g, tau %.3g\n", name, array, i, o, y, t);
        status = WRONG;
    }
    free(expected), free(tau), free(given);
    return status;
}

int main(int argc, char **argv) {
    char line[PATH], name[FIELD], role[FIELD], dtype[FIELD], shape[FIELD], file[FIELD], of_case[FIELD] = "";
    unsigned long long count, counts[4] = {0, 0, 0, 0};
    if (argc != 3) return fprintf(stderr, "usage: attnkit_check VECTORS OUTPUTS\n"), 2;
    snprintf(line, sizeof line, "%s/index.tsv", argv[1]);
    FILE *index = fopen(line, "r");
    if (!index) return fprintf(stderr, "%s: no such file\n", line), 2;
    for (int n = 0; fgets(line, sizeof line, index); n++) {
        const char *format = "%255[^\t]\t%255[^\t]\t%255[^\t]\t%llu\t%255[^\t]\t%255[^\n]";
        if (n == 0 || sscanf(line, format, name, role, dtype, &count, shape, file) != 6) continue;
        if (!strcmp(role, "in.query")) strcpy(of_case, dtype);
        if (strncmp(role, "expected.", 9)) continue;
        int wide = !strcmp(role, "expected.lse") && strcmp(of_case, "float64");
        counts[check(argv[1], argv[2], name, role + 9, wide ? "float32" : of_case, (size_t)count, file)]++;
    }
    fclose(index);
    int agrees = counts[RIGHT] && !counts[WRONG] && !counts[MISSING];
    printf("%s: %llu right, %llu wrong, %llu missing, %llu refused\n", agrees ? "VERIFIED" : "NOT VERIFIED",
           counts[RIGHT], counts[WRONG], counts[MISSING], counts[REFUSED]);
    return agrees ? 0 : 1;
}
