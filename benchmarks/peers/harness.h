/* One rank of a peer without Python: measures allreduce as rank_loop.py does.
 *
 * A program that includes this file defines the peer_* functions below and calls harness_run().
 * Arguments: RESULTS SECONDS MOST WORK...; a WORK is `size:BYTES`, one array reduced in place, or
 * `set:FILE`, the tensors of a training step (FILE has their element counts, in the order in
 * which they become ready), reduced in buckets of 25 MB packed and unpacked by hand.
 * Rank r writes RESULTS/rank-r: for every work a double (the number of timed calls), the clock
 * when timing began, and the clock at the end of every call, in seconds.
 */
#ifndef HVDTUNE_BENCHMARKS_PEERS_HARNESS_H
#define HVDTUNE_BENCHMARKS_PEERS_HARNESS_H

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A peer provides these functions; both return when this rank's result is complete. */
static void peer_sum(float* array, size_t count); /* sum in place */
static double peer_slowest(double value);         /* the largest value of all ranks */

static const size_t kBucketBytes = (size_t)25 << 20;
static const double kWarmUpShare = 0.15; /* of the timed seconds, before them */
static const long kFewestCalls = 2;

typedef struct {
  size_t tensors;
  size_t* counts; /* elements of each tensor */
  float** arrays; /* each a block of its own */
  float* bucket;  /* NULL: a single array, reduced where it is */
} Work;

static void fail(const char* reason, const char* subject) {
  fprintf(stderr, "%s: %s\n", reason, subject);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void* allocate(size_t bytes) {
  void* block = NULL;
  if (posix_memalign(&block, 64, bytes) != 0) fail("out of memory", "an array");
  memset(block, 0, bytes);
  return block;
}

static void add_tensor(Work* work, size_t count) {
  work->counts = (size_t*)realloc(work->counts, (work->tensors + 1) * sizeof(size_t));
  work->arrays = (float**)realloc(work->arrays, (work->tensors + 1) * sizeof(float*));
  if (!work->counts || !work->arrays) fail("out of memory", "the list of tensors");
  work->counts[work->tensors] = count;
  work->arrays[work->tensors] = (float*)allocate(count * sizeof(float));
  work->tensors++;
}

/* The first tensor after the bucket that begins with tensor `first`; its elements in *filled. */
static size_t bucket_end(const Work* work, size_t first, size_t* filled) {
  size_t end = first;
  *filled = 0;
  while (end < work->tensors &&
         (end == first || (*filled + work->counts[end]) * sizeof(float) <= kBucketBytes)) {
    *filled += work->counts[end++];
  }
  return end;
}

static Work open_work(const char* text) {
  Work work = {0, NULL, NULL, NULL};
  if (strncmp(text, "size:", 5) == 0) {
    add_tensor(&work, strtoull(text + 5, NULL, 10) / sizeof(float));
    return work;
  }
  if (strncmp(text, "set:", 4) != 0) fail("not a work", text);
  FILE* list = fopen(text + 4, "r");
  if (!list) fail("cannot read", text + 4);
  size_t count;
  while (fscanf(list, "%zu", &count) == 1) add_tensor(&work, count);
  fclose(list);
  size_t largest = 0;
  for (size_t first = 0, filled; first < work.tensors;) {
    first = bucket_end(&work, first, &filled);
    if (filled > largest) largest = filled;
  }
  work.bucket = (float*)allocate(largest * sizeof(float));
  return work;
}

static void close_work(Work* work) {
  for (size_t i = 0; i < work->tensors; i++) free(work->arrays[i]);
  free(work->arrays);
  free(work->counts);
  free(work->bucket);
}

static void call(Work* work) {
  if (!work->bucket) {
    peer_sum(work->arrays[0], work->counts[0]);
    return;
  }
  for (size_t first = 0, filled; first < work->tensors;) {
    const size_t end = bucket_end(work, first, &filled);
    float* part = work->bucket;
    for (size_t i = first; i < end; part += work->counts[i++]) {
      memcpy(part, work->arrays[i], work->counts[i] * sizeof(float));
    }
    peer_sum(work->bucket, filled);
    part = work->bucket;
    for (size_t i = first; i < end; part += work->counts[i++]) {
      memcpy(work->arrays[i], part, work->counts[i] * sizeof(float));
    }
    first = end;
  }
}

/* Sums rank + 1 over all ranks once; leaves zeros, which stay zeros in any number of sums. */
static void check(Work* work, int rank, int size, const char* name) {
  for (size_t i = 0; i < work->tensors; i++) {
    for (size_t k = 0; k < work->counts[i]; k++) work->arrays[i][k] = (float)(rank + 1);
  }
  call(work);
  const float expected = (float)size * (float)(size + 1) / 2;
  for (size_t i = 0; i < work->tensors; i++) {
    for (size_t k = 0; k < work->counts[i]; k++) {
      if (work->arrays[i][k] != expected) fail("wrong sums", name);
    }
    memset(work->arrays[i], 0, work->counts[i] * sizeof(float));
  }
}

/* Warms up in batches that double until one is long enough; seconds of one call, on all ranks. */
static double warm_up(Work* work, double seconds) {
  for (long batch = 1;; batch *= 2) {
    const double began = now();
    for (long i = 0; i < batch; i++) call(work);
    const double took = peer_slowest(now() - began);
    if (took >= kWarmUpShare * seconds) return took / (double)batch;
  }
}

static void measure(Work* work, double seconds, long most, FILE* results) {
  const double each = warm_up(work, seconds);
  long calls = (long)fmin((double)most, seconds / each);
  if (calls < kFewestCalls) calls = kFewestCalls;
  double* times = (double*)allocate((size_t)(calls + 2) * sizeof(double));
  times[0] = (double)calls;
  peer_slowest(0.0); /* begin together */
  times[1] = now();
  for (long i = 0; i < calls; i++) {
    call(work);
    times[i + 2] = now();
  }
  fwrite(times, sizeof(double), (size_t)calls + 2, results);
  free(times);
}

static void harness_run(int rank, int size, int argc, char** argv) {
  if (argc < 5) fail("usage", "RESULTS SECONDS MOST WORK...");
  char path[4096];
  snprintf(path, sizeof path, "%s/rank-%d", argv[1], rank);
  FILE* results = fopen(path, "wb");
  if (!results) fail("cannot write", path);
  for (int i = 4; i < argc; i++) {
    Work work = open_work(argv[i]);
    check(&work, rank, size, argv[i]);
    measure(&work, atof(argv[2]), atol(argv[3]), results);
    close_work(&work);
  }
  if (fclose(results) != 0) fail("cannot write", path);
}

#endif
