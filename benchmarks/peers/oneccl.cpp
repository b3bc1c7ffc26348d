// One rank of oneCCL on the CPU: ccl::allreduce in place, waited for. See harness.h.
// Started by Intel MPI's mpiexec, which sets PMI_RANK and PMI_SIZE; rank 0 gives the address of its
// key-value store to the others in a file beside the results.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <oneapi/ccl.hpp>
#include <string>

#include "harness.h"

namespace {

std::unique_ptr<ccl::communicator> communicator;

int number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (!text) fail("not set (start me with Intel MPI's mpiexec)", name);
  return std::atoi(text);
}

ccl::shared_ptr_class<ccl::kvs> meet(int rank, const std::string& folder) {
  const std::string path = folder + "/address";
  ccl::kvs::address_type address;
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    address = store->get_address();
    // Written under another name first, so that a reader never finds half of it.
    std::ofstream(path + ".new", std::ios::binary).write(address.data(), address.size());
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) fail("cannot write", path.c_str());
    return store;
  }
  for (int attempt = 0; attempt < 3000; attempt++, usleep(10000)) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(address.data(), address.size())) return ccl::create_kvs(address);
  }
  fail("rank 0 did not write", path.c_str());
  return nullptr;
}

}  // namespace

static void peer_sum(float* array, size_t count) {
  ccl::allreduce(array, array, count, ccl::reduction::sum, *communicator).wait();
}

static double peer_slowest(double value) {
  double largest;
  ccl::allreduce(&value, &largest, 1, ccl::reduction::max, *communicator).wait();
  return largest;
}

int main(int argc, char** argv) {
  if (argc < 2) fail("usage", "RESULTS SECONDS MOST WORK...");
  const int rank = number_from_environment("PMI_RANK");
  const int size = number_from_environment("PMI_SIZE");
  ccl::init();
  communicator = std::make_unique<ccl::communicator>(
      ccl::create_communicator(size, rank, meet(rank, argv[1])));
  harness_run(rank, size, argc, argv);
  communicator.reset();
  return 0;
}
