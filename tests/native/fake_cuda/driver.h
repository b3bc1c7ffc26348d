#pragma once

#include <array>

#include "fake_cuda.h"
#include "host_kernels.h"
#include "shared_event.h"
#include "table.h"

namespace fake_cuda {

using hvdtune::CudaContext;
using hvdtune::CudaEvent;
using hvdtune::CudaFunction;
using hvdtune::CudaModule;

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<Mark> mark;           ///< of the last record
  std::shared_ptr<SharedEvent> shared;  ///< of an interprocess event
};

struct Module {
  std::shared_ptr<Context> context;
};

struct Function {
  std::shared_ptr<Context> context;
  std::shared_ptr<Module> module;
  HostKernel kernel;
  bool packs = false;
};

inline constexpr int kMostDevices = 8;

/// Everything there is. It is never destroyed: threads of streams may run until the process ends.
struct Driver {
  std::mutex mutex;
  std::atomic<bool> started{false};
  std::array<Memory, kMostDevices> memory;
  PinnedTable pinned;
  std::mutex foreign_mutex;
  std::map<CudaPointer, std::shared_ptr<ForeignMemory>> foreign;  ///< by their first address
  struct Primary {
    int retained = 0;
    CudaContext handle = nullptr;
  };
  std::array<Primary, kMostDevices> primaries;
  Table<CudaContext, Context> contexts;
  Table<CudaStream, Stream> streams;
  Table<CudaEvent, Event> events;
  Table<CudaModule, Module> modules;
  Table<CudaFunction, Function> functions;
};

Driver& driver();
int devices();
/// The calling thread's context; null: none.
std::shared_ptr<Context> current();
/// kSuccess, with the current context, where one is current and not ruined.
CudaResult enter(std::shared_ptr<Context>& context);
/// Where bytes of any GPU or of page-locked memory really are; null: nowhere.
std::byte* any_memory(CudaPointer pointer, std::size_t bytes);

}  // namespace fake_cuda
