#include "pmix/pmix_client.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

// Uses nothing of the C++ library: a program without it starts faster.

namespace {

constexpr int kSuccess = 0;
constexpr std::uint16_t kBool = 1;    // PMIX_BOOL
constexpr std::uint16_t kString = 3;  // PMIX_STRING
constexpr std::uint8_t kGlobal = 3;   // PMIX_GLOBAL: for processes on all hosts

struct Process {  // pmix_proc_t
  char name_space[256];
  std::uint32_t rank;
};

struct Value {  // pmix_value_t
  std::uint16_t kind;
  union {
    const char* text;
    bool flag;
    char rest[24];
  };
};

struct Info {  // pmix_info_t
  char key[512];
  std::uint32_t flags;
  Value value;
};

struct Library {
  int (*init)(Process*, Info*, std::size_t);
  int (*put)(std::uint8_t, const char*, Value*);
  int (*commit)();
  int (*fence)(const Process*, std::size_t, const Info*, std::size_t);
  int (*get)(const Process*, const char*, const Info*, std::size_t, Value**);
  int (*finalize)(const Info*, std::size_t);
};

Library pmix;
Process own;

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool failed(int code, const char* call, char* answer, std::size_t size) {
  if (code != kSuccess) {
    std::snprintf(answer, size, "failed %s gave %d", call, code);
  }
  return code != kSuccess;
}

}  // namespace

bool hvdtune_pmix_begin(const char* library, char* reason, std::size_t size) {
  void* opened = dlopen(library, RTLD_NOW);
  if (opened == nullptr || !find(opened, "PMIx_Init", &pmix.init) ||
      !find(opened, "PMIx_Put", &pmix.put) || !find(opened, "PMIx_Commit", &pmix.commit) ||
      !find(opened, "PMIx_Fence", &pmix.fence) || !find(opened, "PMIx_Get", &pmix.get) ||
      !find(opened, "PMIx_Finalize", &pmix.finalize)) {
    std::snprintf(reason, size, "%s", dlerror());
    return false;
  }
  int code = pmix.init(&own, nullptr, 0);
  if (code != kSuccess) {
    std::snprintf(reason, size, "PMIx_Init gave %d", code);
  }
  return code == kSuccess;
}

void hvdtune_pmix_answer(std::uint32_t root, const char* key, const char* text, char* answer,
                         std::size_t size) {
  if (own.rank == root) {
    Value value{};
    value.kind = kString;
    value.text = text;
    if (failed(pmix.put(kGlobal, key, &value), "PMIx_Put", answer, size) ||
        failed(pmix.commit(), "PMIx_Commit", answer, size)) {
      return;
    }
  }
  // All processes wait here, and receive rank 0's text.
  Info collect{};
  std::strcpy(collect.key, "pmix.collect");  // PMIX_COLLECT_DATA
  collect.value.kind = kBool;
  collect.value.flag = true;
  if (failed(pmix.fence(nullptr, 0, &collect, 1), "PMIx_Fence", answer, size)) {
    return;
  }
  Process teller = own;
  teller.rank = root;
  Value* found = nullptr;
  if (!failed(pmix.get(&teller, key, nullptr, 0, &found), "PMIx_Get", answer, size)) {
    std::snprintf(answer, size, "told %s", found->text);
  }
}

void hvdtune_pmix_end() { pmix.finalize(nullptr, 0); }
