#include "transport/meeting/host_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace hvdtune {

std::string host_id(const std::string& salt) {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  std::string network;
  struct stat space{};
  if (stat("/proc/self/ns/net", &space) == 0) {
    network = std::to_string(space.st_dev) + ":" + std::to_string(space.st_ino);
  }
  return boot + "/" + network + "/" + std::to_string(getuid()) + "/" + salt;
}

}  // namespace hvdtune
