#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/operation/operation.h"

namespace hvdtune {

/// One rank's operations in flight, by name and by slot. Not thread-safe: the engine locks.
///
/// A name is in flight from begin() to finish(). The table keeps a record of a name with a slot
/// between its rounds, with the description that all ranks agreed on last.
class OperationTable {
 public:
  /// Enters an operation. False if its name is in flight in its process set. Sets `operation.slot`
  /// if a known slot describes it exactly; `known_slot` is the name's slot even if the description
  /// has changed.
  bool begin(const OperationPtr& operation, wire::Slot& known_slot);

  /// The last agreed description of a name that has a slot and is not in flight, if it equals
  /// `wanted`; else null.
  [[nodiscard]] const wire::Request* known(const TensorOperation& wanted);
  /// The same for an operation that was submitted before; also null if that agreement is no longer
  /// in force.
  [[nodiscard]] const wire::Request* known(const KnownOperation& wanted);
  /// Prefetches the memory that known() will read, and, once that has arrived, the memory that
  /// begin_known() writes.
  void prefetch(const KnownOperation& wanted) const;
  void prefetch_operation(const KnownOperation& wanted) const;
  /// begin() for the name that known() has just found. Reuses the name's last operation if keep()
  /// has it, so that nothing is allocated.
  OperationPtr begin_known(const TensorMemory& memory);
  /// Takes a finished operation that has no results except its status and no other owner.
  void keep(OperationPtr operation);

  /// The operation in flight of a slot, or null.
  [[nodiscard]] const OperationPtr& of_slot(wire::Slot slot) const;
  /// The operation of a schedule entry, or of slot `next` of its run; null if this rank has not
  /// submitted it (it is not a member of the set, or has joined). Stores the slot of a new name.
  OperationPtr find(std::uint32_t process_set, const wire::BatchEntry& entry,
                    std::uint32_t next = 0);

  /// The name is free again; a record with a slot remembers the description if it was executed.
  void finish(const OperationPtr& operation, bool executed);

  /// Forgets a slot. Returns the operation in flight under its name, or null.
  OperationPtr evict(wire::Slot slot);

  /// Everything in flight in a removed process set. The coordinator has evicted its slots.
  std::vector<OperationPtr> take_set(std::uint32_t process_set);

  /// Everything in flight, in no order.
  [[nodiscard]] std::vector<OperationPtr> pending() const;

  /// The same; all names are free afterwards.
  std::vector<OperationPtr> take_all();

 private:
  struct Record {
    OperationPtr pending;
    wire::Slot slot = wire::kNoSlot;
    wire::Request agreed;
    std::uint64_t agreement = 0;  // number of `agreed`, unique among all records
    OperationPtr spare;           // done and forgotten; its request is `agreed`
  };
  struct Key {
    std::uint32_t process_set;
    std::string name;
  };
  /// A key that copies nothing, to look one up with.
  struct KeyView {
    std::uint32_t process_set;
    std::string_view name;

    KeyView(std::uint32_t set, std::string_view text) : process_set(set), name(text) {}
    KeyView(const Key& key) : process_set(key.process_set), name(key.name) {}  // NOLINT: implicit
    bool operator==(const KeyView&) const = default;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const KeyView& key) const {
      return std::hash<std::string_view>()(key.name) ^ (std::size_t{key.process_set} << 32);
    }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const KeyView& a, const KeyView& b) const { return a == b; }
  };
  using Records = std::unordered_map<Key, Record, Hash, Equal>;  // node-based: addresses are stable

  static void agree(Record& record, const wire::Request& request);
  Records::iterator find_record(const wire::Request& request) {
    return records_.find(KeyView{request.process_set, request.name});
  }

  Records records_;
  Record* known_ = nullptr;  // what known() found
  std::vector<Record*> by_slot_;
};

}  // namespace hvdtune
