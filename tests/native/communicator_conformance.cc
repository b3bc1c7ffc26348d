#include "communicator_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "all_ranks_data.h"
#include "base/cpu/cpu.h"
#include "check.h"
#include "reference.h"

namespace hvdtune::testing {
namespace {

#ifdef __SANITIZE_THREAD__  // larger blocks than 256 KiB go back to the system each time
constexpr std::size_t kMany = 30011;
#else
constexpr std::size_t kMany = 100003;
#endif
constexpr std::size_t kSizes[] = {0, 1, 3, 1000, kMany};
constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                    ReduceOp::kProduct};

struct Suite {
  MakeWorld make;
  std::vector<int> sizes;  // so many ranks
};

/// What an allreduce must give. Sums are taken in the order of ranks; if the ranks are on several
/// hosts, within the hosts first.
Bytes expected_allreduce(const ConformanceWorld& world, DType dtype, ReduceOp op,
                         const std::vector<Bytes>& inputs, Scales scales) {
  const std::vector<int> hosts = world.hosts();
  if (hosts.empty()) return expected_reduction(dtype, op, inputs, scales.pre, scales.post);
  return expected_by_hosts(dtype, op, inputs, hosts, scales.pre, scales.post);
}

}  // namespace

void check_allreduce(ConformanceWorld& world, DType dtype, ReduceOp op, std::size_t count,
                     Scales scales) {
  const auto inputs =
      random_inputs(dtype, world.size(), count, count + static_cast<std::uint64_t>(dtype));
  const Bytes expected = expected_allreduce(world, dtype, op, inputs, scales);
  world.run([&](int rank, Communicator& communicator) {
    const auto seed = static_cast<std::uint64_t>(rank);
    Bytes data = inputs[seed];
    Bytes out(data.size());
    const SegmentList in = pieces(data, dtype_size(dtype), seed);
    const SegmentList to = pieces(out, dtype_size(dtype), seed + 100);
    communicator.allreduce({in, to, dtype, op, scales.pre, scales.post});
    check_equal(dtype, data, inputs[seed], "untouched input");
    check_equal(dtype, out, expected, "allreduce");
    communicator.allreduce({in, in, dtype, op, scales.pre, scales.post});
    check_equal(dtype, data, expected, "allreduce in place");
  });
}

namespace {

void allreduce_of_every_dtype_and_reduction(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (int code = 0; code < kDTypeCount; ++code) {
      for (const ReduceOp op : kReductions) {
        for (const std::size_t count : {0, 1, 3, 1000}) {
          check_allreduce(world, static_cast<DType>(code), op, count, {});
        }
      }
    }
  }
}

void allreduce_of_long_messages(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (int code = 0; code < kDTypeCount; ++code) {
      check_allreduce(world, static_cast<DType>(code), kReductions[code % 4], kMany, {});
    }
  }
}

void allreduce_scales_before_and_after(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt32, DType::kFloat64}) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{1000}, kMany}) {
        check_allreduce(world, dtype, ReduceOp::kSum, count, {0.5, 1.0});
        check_allreduce(world, dtype, ReduceOp::kSum, count, {1.0, 1.0 / ranks});
        check_allreduce(world, dtype, ReduceOp::kSum, count, {0.3, 3.0});
      }
    }
  }
}

void chunks_of_any_size_give_the_same_result(const Suite& suite) {
  for (const int ranks : {2, 3}) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const std::int64_t chunk : {1LL, 500LL, 4096LL, 100000LL, 1LL << 30, 0LL}) {
      world.run([&](int, Communicator& communicator) { communicator.tune({chunk}); });
      check_allreduce(world, DType::kFloat32, ReduceOp::kSum, 5000, {});
      check_allreduce(world, DType::kFloat16, ReduceOp::kSum, 20001, {0.5, 0.5});
    }
  }
}

void short_and_long_messages_are_reduced_in_the_same_order(const Suite& suite) {
  for (const int ranks : {2, 3, 5}) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const std::int64_t limit : {1LL, 1LL << 30}) {
      world.run([&](int, Communicator& communicator) {
        communicator.tune({.chunk_size = 10000, .one_shot_limit = limit});
      });
      for (const std::size_t count : {1, 2, 63, 1000, 20001}) {
        check_allreduce(world, DType::kFloat32, ReduceOp::kSum, count, {});
        check_allreduce(world, DType::kFloat16, ReduceOp::kSum, count, {0.5, 0.5});
        check_allreduce(world, DType::kBfloat16, ReduceOp::kProduct, count, {});
        check_allreduce(world, DType::kUint8, ReduceOp::kMax, count, {});
      }
    }
  }
}

void pairs_exchange_messages(const Suite& suite) {
  for (const int ranks : {2, 4, 8}) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (int distance = 1; distance < ranks; distance *= 2) {
      for (const std::size_t unit : {std::size_t{0}, std::size_t{1}, kMany}) {
        world.run([&](int rank, Communicator& communicator) {
          const auto length_of = [&](int member) {
            return unit * static_cast<std::size_t>(member + 1);
          };
          const int partner = rank ^ distance;
          Bytes mine(length_of(rank), static_cast<char>(rank));
          Bytes theirs(length_of(partner));
          SegmentList in;
          SegmentList out;
          in.add(mine.data(), mine.size());
          out.add(theirs.data(), theirs.size());
          communicator.sendrecv({partner, in, out, length_of(ranks - 1)});
          check_equal(DType::kUint8, theirs, Bytes(theirs.size(), static_cast<char>(partner)),
                      "sendrecv");
        });
      }
    }
  }
}

/// Both places get the sum, as if both had been copied before. The longer tensors are in several
/// chunks, so that there are chunks between the two places.
void a_tensor_that_is_in_a_batch_twice(const Suite& suite) {
  for (const int ranks : {1, 3}) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const std::size_t count : {10, 10000, 100000, 400000}) {
      const auto inputs = random_inputs(DType::kInt32, ranks, count, 5);
      for (const Scales scales : {Scales{}, Scales{0.5, 3.0}}) {
        const Bytes expected =
            expected_allreduce(world, DType::kInt32, ReduceOp::kSum, inputs, scales);
        world.run([&](int rank, Communicator& communicator) {
          Bytes data = inputs[static_cast<std::size_t>(rank)];
          SegmentList twice;
          twice.add(data.data(), data.size());
          twice.add(data.data(), data.size());
          communicator.allreduce(
              {twice, twice, DType::kInt32, ReduceOp::kSum, scales.pre, scales.post});
          check_equal(DType::kInt32, data, expected, "a tensor twice");
        });
      }
    }
  }
}

void broadcast_from_every_root(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const std::size_t count : kSizes) {
      for (int root = 0; root < ranks; ++root) {
        const auto inputs = random_inputs(DType::kInt16, ranks, count, count);
        world.run([&](int rank, Communicator& communicator) {
          const auto self = static_cast<std::size_t>(rank);
          Bytes data = inputs[self];
          Bytes out(data.size());
          const SegmentList in = pieces(data, 2, self);
          const SegmentList to = pieces(out, 2, self + 7);
          communicator.broadcast({root, in, to});
          check_equal(DType::kInt16, out, inputs[static_cast<std::size_t>(root)], "broadcast");
          communicator.broadcast({root, in, in});
          check_equal(DType::kInt16, data, inputs[static_cast<std::size_t>(root)],
                      "broadcast in place");
        });
      }
    }
  }
}

void allgather_of_different_lengths(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    for (const std::size_t count : kSizes) {
      std::vector<Bytes> inputs;
      Bytes expected;
      for (int rank = 0; rank < ranks; ++rank) {
        // One rank brings nothing.
        const std::size_t mine = rank == 1 ? 0 : count + static_cast<std::size_t>(rank);
        inputs.push_back(random_inputs(DType::kFloat32, 1, mine, mine)[0]);
        expected.insert(expected.end(), inputs.back().begin(), inputs.back().end());
      }
      world.run([&](int rank, Communicator& communicator) {
        Bytes data = inputs[static_cast<std::size_t>(rank)];
        Bytes gathered(expected.size());
        std::vector<SegmentList> out(inputs.size());
        std::size_t at = 0;
        for (std::size_t member = 0; member < inputs.size(); ++member) {
          out[member].add(gathered.data() + at, inputs[member].size());
          at += inputs[member].size();
        }
        communicator.allgather({pieces(data, 4, 1), out});
        check_equal(DType::kFloat32, gathered, expected, "allgather");
      });
    }
  }
}

void alltoall_of_different_lengths(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    const auto members = static_cast<std::size_t>(ranks);
    for (const std::size_t count : kSizes) {
      // messages[a][b]: from a to b.
      std::vector<std::vector<Bytes>> messages(members);
      std::size_t longest = 0;
      for (std::size_t a = 0; a < members; ++a) {
        for (std::size_t b = 0; b < members; ++b) {
          const std::size_t length = (a + b) % 3 == 2 ? 0 : count / members + a * 3 + b;
          messages[a].push_back(random_inputs(DType::kUint8, 1, length, a * 10 + b)[0]);
          longest = std::max(longest, length);
        }
      }
      world.run([&](int rank, Communicator& communicator) {
        const auto self = static_cast<std::size_t>(rank);
        std::vector<Bytes> sent = messages[self];
        std::vector<Bytes> received(members);
        std::vector<SegmentList> in(members);
        std::vector<SegmentList> out(members);
        for (std::size_t peer = 0; peer < members; ++peer) {
          received[peer].resize(messages[peer][self].size());
          in[peer].add(sent[peer].data(), sent[peer].size());
          out[peer].add(received[peer].data(), received[peer].size());
        }
        communicator.alltoall({in, out, longest});
        for (std::size_t peer = 0; peer < members; ++peer) {
          check_equal(DType::kUint8, received[peer], messages[peer][self], "alltoall");
        }
      });
    }
  }
}

void lengths_travel_with_the_data(const Suite& suite) {
  // Messages of one chunk and of several; short lists of lengths, and one longer than a chunk.
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    const auto members = static_cast<std::size_t>(ranks);
    for (const auto& [unit, extra] :
         {std::pair<std::size_t, std::size_t>{0, 0}, {1, 0}, {70001, 3}, {100, 40000}}) {
      for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{8192}}) {
        world.run([&, unit = unit, extra = extra](int rank, Communicator& communicator) {
          communicator.tune({chunk});
          const auto self = static_cast<std::size_t>(rank);
          const auto length_of = [unit = unit](std::size_t member) { return unit * (member + 1); };
          Bytes mine(length_of(self), static_cast<char>(rank + 1));
          SegmentList in;
          in.add(mine.data(), mine.size());
          std::vector<std::int64_t> numbers(1 + extra, rank);
          numbers[0] = static_cast<std::int64_t>(mine.size());
          Bytes gathered;
          std::vector<SegmentList> out(members);
          int prepared = 0;
          const Lengths lengths{numbers, [&](const std::vector<std::int64_t>& all) {
                                  ++prepared;
                                  CHECK_EQ(all.size(), members * numbers.size());
                                  std::size_t total = 0;
                                  for (std::size_t m = 0; m < members; ++m) {
                                    total += static_cast<std::size_t>(all[m * numbers.size()]);
                                    if (extra > 0) {
                                      CHECK_EQ(all[(m + 1) * numbers.size() - 1],
                                               static_cast<std::int64_t>(m));
                                    }
                                  }
                                  gathered.resize(total);
                                  char* place = gathered.data();
                                  for (std::size_t m = 0; m < members; ++m) {
                                    out[m].add(place, length_of(m));
                                    place += length_of(m);
                                  }
                                  return std::size_t{0};
                                }};
          communicator.allgather({in, out, &lengths});
          CHECK_EQ(prepared, 1);
          Bytes expected;
          for (std::size_t m = 0; m < members; ++m) {
            expected.insert(expected.end(), length_of(m), static_cast<char>(m + 1));
          }
          check_equal(DType::kUint8, gathered, expected, "allgather with lengths");
        });
      }
    }
  }
}

void lengths_of_an_alltoall_travel_with_the_data(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    const auto members = static_cast<std::size_t>(ranks);
    const auto sent = [](std::size_t from, std::size_t to) {
      return (from * 7 + to * 3) % 5 * 9999;
    };
    world.run([&](int rank, Communicator& communicator) {
      communicator.tune({100000});
      const auto self = static_cast<std::size_t>(rank);
      std::vector<std::int64_t> numbers;
      std::vector<Bytes> messages;
      std::vector<SegmentList> in(members);
      for (std::size_t to = 0; to < members; ++to) {
        numbers.push_back(static_cast<std::int64_t>(sent(self, to)));
        messages.emplace_back(sent(self, to), static_cast<char>(self * 16 + to));
      }
      for (std::size_t to = 0; to < members; ++to) {
        in[to].add(messages[to].data(), messages[to].size());
      }
      std::vector<Bytes> received(members);
      std::vector<SegmentList> out(members);
      const Lengths lengths{
          numbers, [&](const std::vector<std::int64_t>& all) {
            for (std::size_t from = 0; from < members; ++from) {
              received[from].resize(static_cast<std::size_t>(all[from * members + self]));
              out[from].add(received[from].data(), received[from].size());
            }
            return static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
          }};
      communicator.alltoall({in, out, 0, &lengths});
      for (std::size_t from = 0; from < members; ++from) {
        const Bytes expected(sent(from, self), static_cast<char>(from * 16 + self));
        check_equal(DType::kUint8, received[from], expected, "alltoall with lengths");
      }
    });
  }
}

[[maybe_unused]] void results_larger_than_the_cache(const Suite& suite) {
  const auto made = suite.make(2);
  ConformanceWorld& world = *made;
  const std::size_t half = shared_cache_bytes() / 4 + 1000;  // two of them exceed half the cache
  world.run([&](int rank, Communicator& communicator) {
    Bytes mine(half, static_cast<char>(rank + 1));
    Bytes gathered(2 * half + 1);
    SegmentList in;
    in.add(mine.data(), half);
    std::vector<SegmentList> out(2);
    out[0].add(gathered.data() + 1, half);  // aligned to nothing
    out[1].add(gathered.data() + 1 + half, half);
    communicator.allgather({in, out});
    Bytes expected(half, char{1});
    expected.insert(expected.end(), half, char{2});
    gathered.erase(gathered.begin());
    check_equal(DType::kUint8, gathered, expected, "allgather");
    SegmentList list;
    list.add(gathered.data(), gathered.size());
    if (rank == 1) std::memset(gathered.data(), 7, gathered.size());
    communicator.broadcast({1, list, list});
    check_equal(DType::kUint8, gathered, Bytes(2 * half, char{7}), "broadcast in place");
  });
}

void reducescatter_gives_every_rank_its_share(const Suite& suite) {
  for (const int ranks : suite.sizes) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    const auto members = static_cast<std::size_t>(ranks);
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kInt8}) {
      for (const std::size_t count : kSizes) {
        for (const Scales scales : {Scales{}, Scales{0.5, 1.0 / ranks}}) {
          const std::size_t element = dtype_size(dtype);
          const auto inputs = random_inputs(dtype, ranks, count, count + 1);
          const Bytes reduced =
              expected_reduction(dtype, ReduceOp::kSum, inputs, scales.pre, scales.post);
          world.run([&](int rank, Communicator& communicator) {
            const auto self = static_cast<std::size_t>(rank);
            Bytes data = inputs[self];
            std::vector<SegmentList> in(members);
            Bytes out;
            Bytes expected;
            std::size_t at = 0;
            for (std::size_t member = 0; member < members; ++member) {
              const std::size_t share =
                  (count / members + (member < count % members ? 1 : 0)) * element;
              in[member].add(data.data() + at, share);
              if (member == self) {
                out.resize(share);
                expected.assign(reduced.begin() + static_cast<std::ptrdiff_t>(at),
                                reduced.begin() + static_cast<std::ptrdiff_t>(at + share));
              }
              at += share;
            }
            SegmentList to;
            to.add(out.data(), out.size());
            communicator.reducescatter({in, to, dtype, ReduceOp::kSum, scales.pre, scales.post});
            check_equal(dtype, out, expected, "reducescatter");
          });
        }
      }
    }
  }
}

void exchange_returns_everybodys_numbers(const Suite& suite) {
  const auto made = suite.make(3);
  ConformanceWorld& world = *made;
  world.run([](int rank, Communicator& communicator) {
    const std::vector<std::int64_t> expected{0, -1, 10, -1, 20, -1};
    CHECK(communicator.exchange({std::int64_t{rank} * 10, -1}) == expected);
    CHECK(communicator.exchange({}).empty());
  });
}

void no_rank_leaves_a_barrier_before_all_have_come(const Suite& suite) {
  const auto made = suite.make(5);
  ConformanceWorld& world = *made;
  std::atomic<int> here{0};
  std::atomic<int>* const shared = world.counter();
  std::atomic<int>& arrived = shared != nullptr ? *shared : here;
  world.run([&](int, Communicator& communicator) {
    for (int round = 1; round <= 300; ++round) {
      arrived.fetch_add(1);
      communicator.barrier();
      CHECK(arrived.load() >= round * 5);
    }
  });
}

void operations_of_all_kinds_follow_each_other_without_pause(const Suite& suite) {
  // The windows are reused from one operation to the next; small chunks make many of them.
  for (const int ranks : {2, 3, 8}) {
    const auto made = suite.make(ranks);
    ConformanceWorld& world = *made;
    constexpr int kRounds = 150;
    world.run([&](int rank, Communicator& communicator) {
      communicator.tune({1 << 13});
      std::mt19937_64 shared(9);  // the same on all ranks
      for (int round = 0; round < kRounds; ++round) {
        const std::size_t count = shared() % 10000;
        const auto seed = static_cast<std::int32_t>(round);
        std::vector<std::int32_t> data(count);
        for (std::size_t i = 0; i < count; ++i) {
          data[i] = seed + static_cast<std::int32_t>(i) * (rank + 1);
        }
        SegmentList list;
        list.add(data.data(), count * sizeof(std::int32_t));
        const auto kind = shared() % 3;
        if (kind == 0) {
          const int root = static_cast<int>(shared() % static_cast<std::uint64_t>(ranks));
          communicator.broadcast({root, list, list});
          for (std::size_t i = 0; i < count; ++i) {
            CHECK_EQ(data[i], seed + static_cast<std::int32_t>(i) * (root + 1));
          }
        } else if (kind == 1) {
          communicator.allreduce({list, list, DType::kInt32, ReduceOp::kSum});
          const std::int32_t factor = ranks * (ranks + 1) / 2;
          for (std::size_t i = 0; i < count; ++i) {
            CHECK_EQ(data[i], seed * ranks + static_cast<std::int32_t>(i) * factor);
          }
        } else {
          const auto all = communicator.exchange({rank + round});
          for (int member = 0; member < ranks; ++member) {
            CHECK_EQ(all[static_cast<std::size_t>(member)], member + round);
          }
        }
      }
    });
  }
}

struct ConformanceTest {
  const char* name;
  void (*body)(const Suite& suite);
};

#define LISTED(test) {#test, test}
constexpr ConformanceTest kTests[] = {
    LISTED(allreduce_of_every_dtype_and_reduction),
    LISTED(allreduce_of_long_messages),
    LISTED(allreduce_scales_before_and_after),
    LISTED(chunks_of_any_size_give_the_same_result),
    LISTED(short_and_long_messages_are_reduced_in_the_same_order),
    LISTED(pairs_exchange_messages),
    LISTED(a_tensor_that_is_in_a_batch_twice),
    LISTED(broadcast_from_every_root),
    LISTED(allgather_of_different_lengths),
    LISTED(alltoall_of_different_lengths),
    LISTED(lengths_travel_with_the_data),
    LISTED(lengths_of_an_alltoall_travel_with_the_data),
#ifndef __SANITIZE_THREAD__  // it takes seconds for each, to find memory for what it notes
    LISTED(results_larger_than_the_cache),
#endif
    LISTED(reducescatter_gives_every_rank_its_share),
    LISTED(exchange_returns_everybodys_numbers),
    LISTED(no_rank_leaves_a_barrier_before_all_have_come),
    LISTED(operations_of_all_kinds_follow_each_other_without_pause),
};
#undef LISTED

}  // namespace

Conformance::Conformance(const char* file, MakeWorld make, bool on_hosts) {
  Suite suite{make, {1, 2, 3, 8}};
  // If they are on hosts, each number is another arrangement of these; elsewhere 4 and 5 ranks do
  // what 8 and 3 do.
  if (on_hosts || long_tests()) suite.sizes = {1, 2, 3, 4, 5, 8};
  for (const ConformanceTest& test : kTests) {
    all_tests().push_back({file, test.name, [suite, body = test.body] { body(suite); }});
  }
}

}  // namespace hvdtune::testing
