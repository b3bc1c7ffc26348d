// Who may connect: processes that know the job's secret, and nobody else.
#include "transport/sockets/tcp_listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "check.h"
#include "threads.h"
#include "transport/sockets/handshake.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune::testing::test_tcp_listener {
namespace {

using handshake::Side;
using handshake::Verdict;
using tcp::Outcome;

constexpr const char* kSecret = "secret";
// Longer than anything here takes; no test waits for it to pass.
constexpr Nanos kLong = 60 * kSecond;

/// A listener that accepts in a thread of its own until it is told to end.
class Door {
 public:
  explicit Door(const std::string& host = "127.0.0.1")
      : listener_({TcpAddress::of_digits(host, 0)}, kSecret), address_(listener_.addresses()[0]) {
    thread_ = std::thread([this] {
      while (!ending_) {
        auto comer = listener_.accept(monotonic_now() + kMillisecond);
        strangers_ = listener_.strangers();
        if (!comer) continue;
        tcp::send_message(comer->socket, "hello " + comer->message, monotonic_now() + kLong);
      }
    });
  }
  ~Door() {
    ending_ = true;
    thread_.join();
  }

  [[nodiscard]] const TcpAddress& address() const { return address_; }
  void await_strangers(std::size_t count) const {
    while (strangers_ < count) std::this_thread::yield();
    CHECK_EQ(strangers_.load(), count);
  }

 private:
  TcpListener listener_;
  TcpAddress address_;
  std::atomic<std::size_t> strangers_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

/// A connection, before anything is said.
Fd connect_to(const TcpAddress& address) {
  std::string why;
  Fd socket = tcp::connect({address}, monotonic_now() + kLong, why,
                           [](const Fd&, std::string&) { return true; });
  CHECK_MSG(socket.valid(), why);
  return socket;
}

std::string receive_bytes(const Fd& socket, std::size_t count) {
  std::string bytes(count, '\0');
  CHECK(tcp::receive_all(socket, bytes.data(), count, monotonic_now() + kLong) == Outcome::kDone);
  return bytes;
}

void send_bytes(const Fd& socket, std::string_view bytes) {
  // The other side may have hung up already, which is what some tests are about.
  tcp::send_all(socket, bytes, monotonic_now() + kLong);
}

/// The other side must say no more, and hang up.
void check_hung_up(const Fd& socket) {
  char byte = 0;
  CHECK(tcp::receive_all(socket, &byte, 1, monotonic_now() + kLong) == Outcome::kClosed);
}

/// A process of the job comes and is greeted.
void check_open(const Door& door, const std::string& message = "rank 1") {
  const Fd socket = connect_to(door.address());
  std::string why;
  const Verdict verdict = handshake::connect_side(socket, kSecret, monotonic_now() + kLong, why);
  CHECK_MSG(verdict == Verdict::kTrusted, why);
  CHECK(tcp::send_message(socket, message, monotonic_now() + kLong) == Outcome::kDone);
  std::string answer;
  CHECK(tcp::receive_message(socket, answer, monotonic_now() + kLong) == Outcome::kDone);
  CHECK_EQ(answer, "hello " + message);
}

}  // namespace

TEST(who_knows_the_secret_is_let_in) {
  const Door door;
  check_open(door);
  check_open(door, "");
  check_open(door, std::string(100'000, 'x'));
  door.await_strangers(0);
}

TEST(a_wrong_secret_is_turned_away_with_a_sentence) {
  const Door door;
  const std::string wrong[] = {"Secret", "secret ", "", std::string(100, 's')};
  for (const std::string& secret : wrong) {
    const Fd socket = connect_to(door.address());
    std::string why;
    CHECK(handshake::connect_side(socket, secret, monotonic_now() + kLong, why) ==
          Verdict::kRefused);
    CHECK_MSG(why.find("different secrets (HVDTUNE_SECRET)") != std::string::npos, why);
  }
  door.await_strangers(4);
  check_open(door);
}

TEST(a_handshake_that_was_overheard_convinces_nobody_again) {
  const Door door;
  // What a process of the job has said, word for word.
  std::string overheard;
  {
    const Fd socket = connect_to(door.address());
    const std::string mine = handshake::make_greeting();
    send_bytes(socket, mine);
    const std::string theirs = receive_bytes(socket, handshake::kGreetingBytes);
    overheard = mine;
    overheard += view_of(handshake::proof(Side::kConnects, kSecret, mine, theirs));
    overheard += tcp::with_length("rank 1");
    send_bytes(socket, overheard.substr(mine.size()));
    receive_bytes(socket, handshake::kProofBytes);
    std::string answer;
    CHECK(tcp::receive_message(socket, answer, monotonic_now() + kLong) == Outcome::kDone);
    CHECK_EQ(answer, "hello rank 1");
  }
  const Fd socket = connect_to(door.address());
  send_bytes(socket, overheard);
  receive_bytes(socket, handshake::kGreetingBytes);
  check_hung_up(socket);
  door.await_strangers(1);
}

TEST(a_proof_cannot_be_sent_back_to_who_made_it) {
  // Somebody who accepts connections does not know the secret, but has the other side's proof.
  const Fd listener = tcp::listen(TcpAddress::of_digits("127.0.0.1", 0));
  std::thread impostor([&] {
    CHECK(tcp::wait_for(listener.get(), POLLIN, monotonic_now() + kLong));
    const Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
    const std::string theirs = receive_bytes(socket, handshake::kGreetingBytes);
    send_bytes(socket, theirs);
    send_bytes(socket, receive_bytes(socket, handshake::kProofBytes));
    char byte = 0;
    tcp::receive_all(socket, &byte, 1, monotonic_now() + kLong);
  });
  {
    const Fd socket = connect_to(TcpAddress::local(listener.get()));
    std::string why;
    CHECK(handshake::connect_side(socket, kSecret, monotonic_now() + kLong, why) ==
          Verdict::kRefused);
    CHECK_EQ(why, std::string("it does not know the job's secret"));
  }
  impostor.join();
}

TEST(garbage_is_dropped_before_it_is_read_to_its_end) {
  const Door door;
  std::mt19937_64 generator(1);
  std::size_t strangers = 0;
  for (const std::size_t length : {1, 8, 39, 40, 72, 100, 100'000}) {
    std::string garbage(length, '\0');
    for (char& byte : garbage) byte = static_cast<char>(generator());
    garbage[0] = 'G';
    const Fd socket = connect_to(door.address());
    send_bytes(socket, garbage);
    check_hung_up(socket);
    door.await_strangers(++strangers);
  }
  // The right beginning, and then garbage in place of the proof.
  const Fd socket = connect_to(door.address());
  send_bytes(socket, handshake::make_greeting());
  receive_bytes(socket, handshake::kGreetingBytes);
  send_bytes(socket, std::string(handshake::kProofBytes, 'x'));
  check_hung_up(socket);
  door.await_strangers(++strangers);
  check_open(door);
}

TEST(random_messages_of_a_fuzzer_keep_nobody_out) {
  const Door door;
  std::mt19937_64 generator(7);
  constexpr std::size_t kTries = 300;
  for (std::size_t i = 0; i < kTries; ++i) {
    const Fd socket = connect_to(door.address());
    std::string bytes = handshake::make_greeting();
    bytes.resize(generator() % 120);
    for (std::size_t flips = generator() % 4; flips > 0 && !bytes.empty(); --flips) {
      bytes[generator() % bytes.size()] = static_cast<char>(generator());
    }
    send_bytes(socket, bytes);
    if (i % 50 == 0) check_open(door);
  }
  door.await_strangers(kTries);
  check_open(door);
}

TEST(an_oversized_message_takes_no_memory) {
  const Door door;
  const Fd socket = connect_to(door.address());
  std::string why;
  CHECK(handshake::connect_side(socket, kSecret, monotonic_now() + kLong, why) ==
        Verdict::kTrusted);
  const std::uint32_t length = UINT32_MAX;
  send_bytes(socket, {reinterpret_cast<const char*>(&length), sizeof(length)});
  check_hung_up(socket);
  check_open(door);
  door.await_strangers(0);  // it knew the secret
}

TEST(those_who_say_nothing_keep_nobody_out) {
  const Door door;
  std::vector<Fd> silent;
  for (std::size_t i = 0; i < TcpListener::kMostPending; ++i) {
    silent.push_back(connect_to(door.address()));
  }
  check_open(door);  // in place of the first of them
  check_hung_up(silent.front());
  door.await_strangers(1);
  for (int i = 0; i < 20; ++i) silent.push_back(connect_to(door.address()));
  check_open(door);
}

TEST(a_slow_handshake_gets_through_and_holds_up_nobody) {
  const Door door;
  const Fd socket = connect_to(door.address());
  const auto send_slowly = [&](std::string_view bytes) {
    for (const char byte : bytes) {
      send_bytes(socket, {&byte, 1});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const std::string mine = handshake::make_greeting();
  send_slowly(mine.substr(0, 20));
  check_open(door);
  send_slowly(mine.substr(20));
  const std::string theirs = receive_bytes(socket, handshake::kGreetingBytes);
  const Digest proof = handshake::proof(Side::kConnects, kSecret, mine, theirs);
  send_slowly(view_of(proof));
  CHECK_EQ(receive_bytes(socket, handshake::kProofBytes),
           std::string(view_of(handshake::proof(Side::kAccepts, kSecret, mine, theirs))));
  check_open(door);
  send_slowly(tcp::with_length("slowly"));
  std::string answer;
  CHECK(tcp::receive_message(socket, answer, monotonic_now() + kLong) == Outcome::kDone);
  CHECK_EQ(answer, std::string("hello slowly"));
}

TEST(what_comes_behind_the_first_message_is_left_for_its_reader) {
  TcpListener listener({TcpAddress::of_digits("127.0.0.1", 0)}, kSecret);
  const TcpAddress address = listener.addresses()[0];
  run_threads(2, [&](int side) {
    if (side == 0) {
      const Fd socket = connect_to(address);
      std::string why;
      CHECK(handshake::connect_side(socket, kSecret, monotonic_now() + kLong, why) ==
            Verdict::kTrusted);
      send_bytes(socket, tcp::with_length("first") + tcp::with_length("second"));
    } else {
      auto comer = listener.accept(monotonic_now() + kLong);
      CHECK(comer.has_value());
      CHECK_EQ(comer->message, std::string("first"));
      std::string second;
      CHECK(tcp::receive_message(comer->socket, second, monotonic_now() + kLong) == Outcome::kDone);
      CHECK_EQ(second, std::string("second"));
    }
  });
}

TEST(a_listener_is_reached_at_its_addresses_only) {
  TcpListener listener({TcpAddress::of_digits("127.0.0.1", 0)}, kSecret);
  CHECK(!listener.accept(monotonic_now()));  // nobody
  const int port = listener.addresses()[0].port();
  std::string why;
  const Fd socket =
      tcp::connect({TcpAddress::of_digits("127.0.0.2", port)}, monotonic_now() + kLong, why,
                   [](const Fd&, std::string&) { return true; });
  CHECK(!socket.valid());
  CHECK_EQ(why, "127.0.0.2:" + std::to_string(port) + ": Connection refused");
}

/// An address of a family that this process cannot use, as IPv6 is where there is none.
TcpAddress unusable_address() {
  sockaddr address{};
  address.sa_family = AF_UNIX;
  return {&address, sizeof(address)};
}

TEST(an_address_that_cannot_be_used_leaves_the_others) {
  TcpListener listener({unusable_address(), TcpAddress::of_digits("127.0.0.1", 0)}, kSecret);
  CHECK_EQ(listener.addresses().size(), std::size_t{1});
  std::string why;
  const auto any = [](const Fd&, std::string&) { return true; };
  const Fd socket = tcp::connect({unusable_address(), listener.addresses()[0]},
                                 monotonic_now() + kLong, why, any);
  CHECK(socket.valid());
  CHECK(!tcp::connect({unusable_address()}, monotonic_now() + kLong, why, any).valid());
  CHECK(!why.empty());
  CHECK_THROWS_WITH(
      TcpListener({unusable_address(), TcpAddress::of_digits("192.0.2.1", 0)}, kSecret), Error,
      "; cannot listen at 192.0.2.1:0: no network interface of this host");
}

TEST(those_who_come_without_end_do_not_keep_the_listener_from_its_deadline) {
  TcpListener listener({TcpAddress::of_digits("127.0.0.1", 0)}, kSecret);
  const TcpAddress address = listener.addresses()[0];
  std::atomic<bool> over{false};
  run_threads(5, [&](int thread) {
    if (thread > 0) {
      const auto any = [](const Fd&, std::string&) { return true; };
      std::string why;
      // At a deadline in the past: it need not be let in, it need only come.
      while (!over) tcp::connect({address}, monotonic_now(), why, any);
      return;
    }
    while (listener.strangers() < 2 * TcpListener::kMostPending) {
      CHECK(!listener.accept(monotonic_now()));
    }
    over = true;
  });
}

TEST(addresses_that_cannot_be_had_are_named) {
  const TcpListener listener({TcpAddress::of_digits("127.0.0.1", 0)}, kSecret);
  const TcpAddress taken = listener.addresses()[0];
  CHECK_THROWS_WITH(TcpListener({taken}, kSecret), Error,
                    "cannot listen at " + taken.text() + ": another process uses this port");
  CHECK_THROWS_WITH(TcpListener({TcpAddress::of_digits("192.0.2.1", 0)}, kSecret), Error,
                    "cannot listen at 192.0.2.1:0: no network interface of this host has this "
                    "address");
  CHECK_THROWS_WITH(resolve("no such host.invalid", 1), Error,
                    "host no such host.invalid has no known address");
  CHECK_THROWS_WITH(interface_addresses({"nowhere0"}), Error,
                    "this host has no network interface nowhere0; it has ");
}

TEST(an_address_stands_for_itself_alone) {
  const auto addresses = interface_addresses({"127.0.0.1"});
  CHECK_EQ(addresses.size(), std::size_t{1});
  CHECK_EQ(addresses[0].host(), std::string("127.0.0.1"));
  CHECK_THROWS_WITH(interface_addresses({"127.0.0.1", "192.0.2.1"}), Error,
                    "this host has no network interface 192.0.2.1; it has ");
}

TEST(the_loopback_interface_has_its_addresses) {
  bool found = false;
  for (const TcpAddress& address : interface_addresses({"lo"})) {
    found = found || address.host() == "127.0.0.1";
    CHECK_EQ(address.port(), 0);
  }
  CHECK(found);
}

TEST(addresses_are_written_as_others_write_them) {
  CHECK_EQ(TcpAddress::of_digits("10.1.2.3", 80).text(), std::string("10.1.2.3:80"));
  CHECK_EQ(TcpAddress::of_digits("fd00::2", 80).text(), std::string("[fd00::2]:80"));
  CHECK_EQ(TcpAddress::of_digits("fd00::2", 80).with_port(81).port(), 81);
  CHECK_THROWS(TcpAddress::of_digits("localhost", 80), Error);
}

/// An address that does not answer: the kernel drops what is more than a listener's queue takes.
TEST(an_address_without_an_answer_ends_at_the_deadline_and_holds_up_no_other) {
  const Fd full = tcp::listen(TcpAddress::of_digits("127.0.0.1", 0));
  CHECK_EQ(listen(full.get(), 0), 0);
  const TcpAddress silent = TcpAddress::local(full.get());
  const auto any = [](const Fd&, std::string&) { return true; };
  std::vector<Fd> queued;
  std::string why;
  do {
    queued.push_back(tcp::connect({silent}, monotonic_now() + 100 * kMillisecond, why, any));
  } while (queued.back().valid());
  CHECK_EQ(why, silent.text() + ": no answer");
  const Door door;
  const Fd socket = tcp::connect({silent, door.address()}, monotonic_now() + kLong, why, any);
  CHECK(socket.valid());
  CHECK_EQ(TcpAddress::peer(socket.get()).text(), door.address().text());
}

/// One that answers, but is not who is meant: several hosts can have the same address.
TEST(the_address_with_the_right_answer_is_taken) {
  const Door door;
  const Fd other = tcp::listen(TcpAddress::of_digits("127.0.0.1", 0));
  std::string why;
  const auto usable = [&](const Fd& fd, std::string& cause) {
    cause = "not this one";
    return TcpAddress::peer(fd.get()).port() == door.address().port();
  };
  const Fd socket = tcp::connect({TcpAddress::local(other.get()), door.address()},
                                 monotonic_now() + kLong, why, usable);
  CHECK(socket.valid());
  CHECK_EQ(TcpAddress::peer(socket.get()).text(), door.address().text());
  const Fd none =
      tcp::connect({TcpAddress::local(other.get())}, monotonic_now() + kLong, why, usable);
  CHECK(!none.valid());
  CHECK_EQ(why, TcpAddress::local(other.get()).text() + ": not this one");
}

}  // namespace hvdtune::testing::test_tcp_listener
