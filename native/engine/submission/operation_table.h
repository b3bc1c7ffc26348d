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
/// A name is in flight from begin() to finish(). A name that has a slot keeps a record between its
/// rounds, with the description that all ranks agreed on last.
class OperationTable {
 public:
  /// Enters an operation. False when its name is in flight in its process set. Sets
  /// `operation.slot` when a known slot describes it exactly; `known_slot` is the name's slot even
  /// when the description has changed.
  bool begin(const OperationPtr& operation, wire::Slot& known_slot);

  /// What all ranks agreed on last for a name that has a slot and is not in flight, if
  /// `wanted` is that; else null.
  [[nodiscard]] const wire::Request* known(const TensorOperation& wanted);
  /// The same for what was submitted before; null also when it is not known as that any more.
  [[nodiscard]] const wire::Request* known(const KnownOperation& wanted);
  /// Asks for what known() will look at, and, once that has come, for what begin_known() writes to.
  void prefetch(const KnownOperation& wanted) const;
  void prefetch_operation(const KnownOperation& wanted) const;
  /// begin(), of what known() has just found: the name's last operation once more if keep() has
  /// it, so that nothing is allocated.
  OperationPtr begin_known(const TensorMemory& memory);
  /// Takes an operation that was finished, brought nothing but its status and is nobody's any more.
  void keep(OperationPtr operation);

  /// The operation in flight of a slot, or null.
  [[nodiscard]] const OperationPtr& of_slot(wire::Slot slot) const;
  /// The operation that a schedule entry means, or that of slot `next` of its run; null when this
  /// rank has not submitted it (it is no member of the set, or has joined). Learns the slot of a
  /// new name.
  OperationPtr find(std::uint32_t process_set, const wire::BatchEntry& entry,
                    std::uint32_t next = 0);

  /// The name is free again; a record with a slot remembers the description if it was executed.
  void finish(const OperationPtr& operation, bool executed);

  /// Forgets a slot. Returns the operation in flight under its name, or null.
  OperationPtr evict(wire::Slot slot);

  /// Everything in flight in a process set that is no more. The coordinator has evicted its slots.
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
    std::uint64_t agreement = 0;  // counts whatever any record's `agreed` has been
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
