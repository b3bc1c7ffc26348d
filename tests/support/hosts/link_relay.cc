// A switch with slow links, for kernels without netem: see tests/support/hosts/hosts_rig.py.
//
//   link_relay RATE DELAY LOSS NAMESPACE...
//
// makes a TAP device eth0 in each network namespace and carries frames between them. What a host
// sends leaves at RATE bits a second, one frame after the other, and arrives DELAY nanoseconds
// later; a share LOSS of the frames (0 to 1) is lost. Says "ready" once the devices are there;
// "cut 1" and "join 1" on its standard input take the second host from the network and put it back;
// it ends with its standard input. Without loss, frames may be as long as the kernel's
// segmentation makes them (64 KiB): fewer to carry, the same number of bytes.

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kHeader = 10;  // struct virtio_net_hdr, before every frame
constexpr size_t kLongest = 65536 + 256;
constexpr int64_t kLongestQueue = 50'000'000;  // ns that a frame may wait for its link
constexpr int kBurst = 32;                     // frames taken from one device before the others'

using Address = std::array<unsigned char, 6>;

struct Delivery {
  int64_t due;
  uint64_t number;  // among equals, the first that came
  size_t port;
  std::vector<char> frame;

  bool operator>(const Delivery& other) const {
    return due != other.due ? due > other.due : number > other.number;
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "link_relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A TAP device eth0 in a namespace, which it leaves with this process.
int make_device(const std::string& name, bool long_frames) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) fail(name);
  close(space);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) fail("/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "eth0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(device, TUNSETIFF, &request) != 0) fail("TUNSETIFF");
  const unsigned offload = long_frames ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0;
  if (ioctl(device, TUNSETOFFLOAD, offload) != 0) fail("TUNSETOFFLOAD");
  return device;
}

class Switch {
 public:
  Switch(double rate, int64_t delay, double loss, std::vector<int> devices)
      : rate_(rate),
        delay_(delay),
        loss_(loss),
        devices_(std::move(devices)),
        cut_(devices_.size(), false),
        free_at_(devices_.size(), 0) {}

  /// Carries frames until stdin ends.
  void run() {
    std::vector<pollfd> waits;
    for (const int device : devices_) waits.push_back({device, POLLIN, 0});
    waits.push_back({0, POLLIN, 0});
    while (true) {
      timespec left{};
      const timespec* timeout = nullptr;
      if (!deliveries_.empty()) {
        const int64_t wait = std::max<int64_t>(0, deliveries_.top().due - now());
        left = {wait / 1'000'000'000, wait % 1'000'000'000};
        timeout = &left;
      }
      if (ppoll(waits.data(), waits.size(), timeout, nullptr) < 0 && errno != EINTR) fail("ppoll");
      if (waits.back().revents != 0 && !obey()) return;
      for (size_t port = 0; port < devices_.size(); ++port) {
        if (waits[port].revents != 0) take(port);
      }
      deliver();
    }
  }

 private:
  /// Reads what standard input says, one command at a time; false at its end.
  bool obey() {
    char text[256];
    const ssize_t size = read(0, text, sizeof text - 1);
    if (size <= 0) return false;
    text[size] = 0;
    char word[16];
    size_t port = 0;
    if (std::sscanf(text, "%15s %zu", word, &port) != 2 || port >= devices_.size()) return false;
    cut_[port] = std::strcmp(word, "cut") == 0;
    std::puts("done");
    std::fflush(stdout);
    return true;
  }

  void take(size_t port) {
    for (int i = 0; i < kBurst; ++i) {
      const ssize_t size = read(devices_[port], buffer_.data(), buffer_.size());
      if (size <= 0) return;
      if (cut_[port]) continue;
      if (size < static_cast<ssize_t>(kHeader + 12)) continue;
      Address from, to;
      std::memcpy(to.data(), buffer_.data() + kHeader, 6);
      std::memcpy(from.data(), buffer_.data() + kHeader + 6, 6);
      ports_[from] = port;
      const int64_t time = now();
      const double bits = 8.0 * static_cast<double>(size - static_cast<ssize_t>(kHeader));
      const int64_t left_at =
          std::max(time, free_at_[port]) + static_cast<int64_t>(bits / rate_ * 1e9);
      if (left_at - time > kLongestQueue) continue;
      free_at_[port] = left_at;
      if (loss_ > 0 && chance_(random_) < loss_) continue;
      const auto known = (to[0] & 1) != 0 ? ports_.end() : ports_.find(to);
      for (size_t target = 0; target < devices_.size(); ++target) {
        if (target == port || (known != ports_.end() && known->second != target)) continue;
        deliveries_.push(
            {left_at + delay_, ++number_, target, {buffer_.data(), buffer_.data() + size}});
      }
    }
  }

  void deliver() {
    for (const int64_t time = now(); !deliveries_.empty() && deliveries_.top().due <= time;
         deliveries_.pop()) {
      const Delivery& next = deliveries_.top();
      if (cut_[next.port]) continue;
      // A device that is down takes nothing, as a wire that is cut.
      if (write(devices_[next.port], next.frame.data(), next.frame.size()) < 0 && errno == EBADF) {
        fail("write");
      }
    }
  }

  const double rate_;
  const int64_t delay_;
  const double loss_;
  const std::vector<int> devices_;
  std::vector<bool> cut_;
  std::vector<int64_t> free_at_;  // when each host's link has sent what it was given
  std::map<Address, size_t> ports_;
  std::priority_queue<Delivery, std::vector<Delivery>, std::greater<>> deliveries_;
  uint64_t number_ = 0;
  std::array<char, kLongest> buffer_;
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> chance_{0.0, 1.0};
};

}  // namespace

int main(int count, char** words) {
  if (count < 5) {
    std::fprintf(stderr, "usage: link_relay RATE DELAY LOSS NAMESPACE...\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1);
  const double loss = std::atof(words[3]);
  std::vector<int> devices;
  for (int i = 4; i < count; ++i) devices.push_back(make_device(words[i], loss == 0));
  Switch relay(std::atof(words[1]), std::atoll(words[2]), loss, std::move(devices));
  std::puts("ready");
  std::fflush(stdout);
  relay.run();
  return 0;
}
