#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "check.h"

namespace hvdtune::testing {

/// A folder that is gone after the test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/hvdtune-test-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace hvdtune::testing
