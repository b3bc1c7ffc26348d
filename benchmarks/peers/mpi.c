/* One rank of an MPI: blocking MPI_Allreduce in place. See harness.h. */
#include <mpi.h>

#include "harness.h"

static void peer_sum(float* array, size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, array, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double peer_slowest(double value) {
  double largest;
  MPI_Allreduce(&value, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  harness_run(rank, size, argc, argv);
  MPI_Finalize();
  return 0;
}
