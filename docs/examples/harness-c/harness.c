/* A harness for attnkit in C99: naive attention in float32, asked over standard input and output.
 *
 *     cc -std=c99 -O2 -o harness harness.c -lm && attnkit conform run "cmd:./harness" --level 1
 *
 * Replace attend() by whatever you want to check. A message is one line of JSON; what a call is stands in its folder, in
 * case.tsv, as lines of a name, a tab and values. So no reader of JSON is needed here. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  long B, H, K, T, S, D, E;       /* sequences, query heads, key/value heads, queries, keys, head sizes */
  double scale;
  int lse, causal, window;
  long left, right;               /* of the window; -1: no limit */
} Call;

static const char *CAPABILITIES =
    "{\"dtypes\": [\"float32\"], \"gqa\": true, \"value_dim\": true, \"window\": true, \"lengths\": true, "
    "\"offsets\": true, \"lse\": true}";

static const char *join(const char *folder, const char *name) {
  static char path[4200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* Read a file whole; NULL where there is none. */
static void *load(const char *path, size_t *count, size_t size) {
  FILE *file = fopen(path, "rb");
  long bytes;
  void *data;
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  bytes = ftell(file);
  rewind(file);
  data = malloc(bytes > 0 ? (size_t)bytes : 1);
  *count = data ? fread(data, size, (size_t)bytes / size, file) : 0;
  fclose(file);
  return data;
}

static int store(const char *path, const float *data, size_t count) {
  FILE *file = fopen(path, "wb");
  size_t written = file ? fwrite(data, sizeof *data, count, file) : 0;
  return file && !fclose(file) && written == count;
}

/* Read case.tsv; gives the name of what this harness does not know, or NULL. */
static const char *read_call(const char *folder, Call *call) {
  static char name[64];
  char line[512], value[128], more[128];
  FILE *file = fopen(join(folder, "case.tsv"), "r");
  memset(call, 0, sizeof *call);
  call->left = call->right = -1;
  if (!file) return "case.tsv";
  while (fgets(line, sizeof line, file)) {
    int fields = sscanf(line, "%63s %127s %127s", name, value, more);
    if (!strcmp(name, "batch")) call->B = atol(value);
    else if (!strcmp(name, "heads")) call->H = atol(value);
    else if (!strcmp(name, "kv_heads")) call->K = atol(value);
    else if (!strcmp(name, "queries")) call->T = atol(value);
    else if (!strcmp(name, "keys")) call->S = atol(value);
    else if (!strcmp(name, "head_dim")) call->D = atol(value);
    else if (!strcmp(name, "value_dim")) call->E = atol(value);
    else if (!strcmp(name, "scale")) call->scale = strtod(value, NULL);
    else if (!strcmp(name, "lse")) call->lse = atoi(value);
    else if (!strcmp(name, "causal")) call->causal = 1;
    else if (!strcmp(name, "window") && fields == 3) {
      call->window = 1;
      call->left = value[0] == '-' ? -1 : atol(value);
      call->right = more[0] == '-' ? -1 : atol(more);
    } else if (!strcmp(name, "softcap") ? strtod(value, NULL) != 0 : strcmp(name, "dtype") && fields > 0) {
      fclose(file);
      return name;
    }
  }
  fclose(file);
  return NULL;
}

/* Give number b of a file of one integer for each sequence; a default where there is no file. */
static long number(const int64_t *numbers, size_t count, long b, long otherwise) {
  return numbers ? (long)numbers[count == 1 ? 0 : b] : otherwise;
}

/* One row of the output. */
static void attend_row(const Call *c, const float *query, const float *key, const float *value, long keys, long place,
                       long first, float *scores, float *output, float *lse) {
  float top = -INFINITY, total = 0;
  long j, d, e;
  for (e = 0; e < c->E; e++) output[e] = 0;
  for (j = 0; j < keys; j++) {
    long at = first + j;
    int seen = !(c->causal && at > place);
    if (c->window && c->left >= 0 && at <= place - c->left) seen = 0;
    if (c->window && c->right >= 0 && at > place + c->right) seen = 0;
    scores[j] = -INFINITY;
    if (!seen) continue;
    scores[j] = 0;
    for (d = 0; d < c->D; d++) scores[j] += query[d] * key[j * c->D + d];
    scores[j] *= (float)c->scale;
    if (scores[j] > top || isnan(scores[j])) top = scores[j];
  }
  for (j = 0; j < keys; j++) {
    float weight = scores[j] == -INFINITY ? 0 : expf(scores[j] - top);
    if (scores[j] == -INFINITY) continue;
    total += weight;
    for (e = 0; e < c->E; e++) output[e] += weight * value[j * c->E + e];
  }
  for (e = 0; e < c->E; e++) output[e] = total != 0 ? output[e] / total : 0;
  *lse = total != 0 ? top + logf(total) : -INFINITY;
}

static int attend(const char *folder, const Call *c) {
  size_t n, nq, nk, no, nf;
  float *query = load(join(folder, "in/query.bin"), &n, sizeof(float));
  float *key = load(join(folder, "in/key.bin"), &n, sizeof(float));
  float *value = load(join(folder, "in/value.bin"), &n, sizeof(float));
  int64_t *query_lengths = load(join(folder, "in/query_lengths.bin"), &nq, sizeof(int64_t));
  int64_t *kv_lengths = load(join(folder, "in/kv_lengths.bin"), &nk, sizeof(int64_t));
  int64_t *query_offset = load(join(folder, "in/query_offset.bin"), &no, sizeof(int64_t));
  int64_t *key_offset = load(join(folder, "in/key_offset.bin"), &nf, sizeof(int64_t));
  size_t rows = (size_t)(c->B * c->H * c->T);
  float *output = calloc(rows * (size_t)c->E + 1, sizeof(float)), *lse = calloc(rows + 1, sizeof(float));
  float *scores = malloc(((size_t)c->S + 1) * sizeof(float));
  int fine = query && key && value && output && lse && scores;
  long b, h, i;
  for (b = 0; fine && b < c->B; b++) {
    long queries = number(query_lengths, nq, b, c->T), keys = number(kv_lengths, nk, b, c->S);
    long first = number(key_offset, nf, b, 0), start = number(query_offset, no, b, first + keys - queries);
    for (h = 0; h < c->H; h++) {
      long head = b * c->K + h / (c->H / c->K);
      for (i = 0; i < c->T; i++) {
        long row = (b * c->H + h) * c->T + i;
        attend_row(c, query + row * c->D, key + head * c->S * c->D, value + head * c->S * c->E,
                   i < queries ? keys : 0, start + i, first, scores, output + row * c->E, lse + row);
      }
    }
  }
  fine = fine && store(join(folder, "out/output.bin"), output, rows * (size_t)c->E);
  if (c->lse) fine = fine && store(join(folder, "out/lse.bin"), lse, rows);
  free(query); free(key); free(value); free(query_lengths); free(kv_lengths); free(query_offset); free(key_offset);
  free(output); free(lse); free(scores);
  return fine;
}

/* Copy the string behind a name of a line of JSON; empty where there is none. Folders have no escapes in them. */
static void text_of(const char *line, const char *name, char *to, size_t size) {
  char quoted[64];
  const char *at;
  size_t n = 0;
  snprintf(quoted, sizeof quoted, "\"%s\":", name);
  at = strstr(line, quoted);
  at = at ? strchr(at + strlen(quoted), '"') : NULL;
  for (at = at ? at + 1 : ""; *at && *at != '"' && n + 1 < size; at++) to[n++] = *at;
  to[n] = 0;
}

int main(void) {
  static char line[1 << 16], command[32], folder[4096];
  while (fgets(line, sizeof line, stdin)) {
    const char *at = strstr(line, "\"id\":");
    long id = at ? strtol(at + 5, NULL, 10) : 0;
    Call call;
    const char *unknown;
    text_of(line, "command", command, sizeof command);
    text_of(line, "folder", folder, sizeof folder);
    if (!strcmp(command, "hello"))
      printf("{\"id\": %ld, \"status\": \"ok\", \"protocol\": 1, \"name\": \"naive\", \"language\": \"C\"}\n", id);
    else if (!strcmp(command, "capabilities"))
      printf("{\"id\": %ld, \"status\": \"ok\", \"capabilities\": %s}\n", id, CAPABILITIES);
    else if (strcmp(command, "attend"))
      printf("{\"id\": %ld, \"status\": \"ok\"}\n", id);
    else if ((unknown = read_call(folder, &call)) != NULL)
      printf("{\"id\": %ld, \"status\": \"unsupported\", \"code\": \"%s\"}\n", id, unknown);
    else if (attend(folder, &call))
      printf("{\"id\": %ld, \"status\": \"ok\"}\n", id);
    else
      printf("{\"id\": %ld, \"status\": \"error\", \"message\": \"a file could not be read or written\"}\n", id);
    fflush(stdout);
    if (!strcmp(command, "stop")) break;
  }
  return 0;
}
