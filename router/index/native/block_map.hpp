// The map of all blocks that any worker holds. It grows and removes lost workers incrementally, a little per event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "block_table.hpp"

namespace baton {

// Owns two tables while it grows: each event moves a few entries from the old one until it is empty.
class BlockMap {
public:
    explicit BlockMap(std::uint64_t multiplier) : table_(kFirstCapacity, multiplier), multiplier_(multiplier) {}

    std::size_t size() const { return table_.size() + old_.size(); }

    std::size_t num_bytes() const {
        return (table_.capacity() + old_.capacity()) * sizeof(Entry) + sets_.num_bytes();
    }

    void prefetch(const BlockHash& hash) const {
        table_.prefetch(hash);
        old_.prefetch(hash);
    }

    // The entry's holders are valid until the next change.
    const Holders* holders(const BlockHash& hash) const {
        const Entry* entry = find(hash);
        return entry ? &entry->holders : nullptr;
    }

    const WorkerSets& sets() const { return sets_; }

    // False if the worker held it already.
    bool insert(WorkerNumber worker, const BlockHash& hash) {
        work();
        if (Entry* entry = find(hash)) return entry->holders.insert(worker, sets_);
        if (size() + 1 > table_.capacity() * 7 / 10) grow();
        return table_.add(hash).holders.insert(worker, sets_);
    }

    // False if the worker did not hold it.
    bool erase(WorkerNumber worker, const BlockHash& hash) {
        work();
        BlockTable* table = &table_;
        Entry* entry = table->find(hash);
        if (!entry) {
            table = &old_;
            entry = table->find(hash);
        }
        if (!entry || !entry->holders.erase(worker, sets_)) return false;
        if (entry->holders.empty()) note_moved(table->erase(*entry), *table);
        return true;
    }

    // Starts to remove the worker's blocks; lookups may still return it until `take_forgotten` reports it.
    void forget(WorkerNumber worker) { to_forget_.insert(worker); }

    // Visits the workers whose last block has been removed since the last call.
    template <typename Visit>
    void take_forgotten(Visit visit) {
        forgotten_.each(visit);
        forgotten_.clear();
    }

    // Completes all pending work at once.
    void finish() {
        while (old_.capacity() || forgetting_.size() || to_forget_.size()) work();
    }

private:
    static constexpr std::size_t kFirstCapacity = 1024;
    static constexpr std::size_t kSlotsAnEvent = 8;  // the old table is empty before the doubled one can fill up

    Entry* find(const BlockHash& hash) const {
        Entry* entry = table_.find(hash);
        return entry ? entry : old_.find(hash);
    }

    void work() {
        if (old_.capacity()) {
            move_some(kSlotsAnEvent);
        } else if (forgetting_.size()) {
            sweep(kSlotsAnEvent);
        } else if (to_forget_.size()) {
            forgetting_ = std::exchange(to_forget_, WorkerSet());
            slots_left_ = table_.capacity();
        }
    }

    void grow() {
        BlockTable larger(table_.capacity() * 2, multiplier_);
        move_some(old_.capacity());
        old_ = std::move(table_);
        table_ = std::move(larger);
        cursor_ = 0;
        slots_left_ = table_.capacity();  // the sweep restarts: entries have moved
        must_repeat_ = false;
    }

    void move_some(std::size_t num_slots) {
        for (; num_slots && cursor_ < old_.capacity(); --num_slots, ++cursor_) {
            while (!old_.at(cursor_).holders.empty()) {  // closing the gap may move another entry here
                Entry& entry = old_.at(cursor_);
                table_.add(entry.hash).holders = entry.holders;
                old_.erase_slot(cursor_);
            }
        }
        if (!old_.size()) old_ = BlockTable();
    }

    // Visits slots from last to first: closing a gap moves entries to lower slots, which are visited later.
    void sweep(std::size_t num_slots) {
        for (; num_slots && slots_left_; --num_slots, --slots_left_) {
            Entry& entry = table_.at(slots_left_ - 1);
            while (!entry.holders.empty()) {
                entry.holders.erase_all(forgetting_, sets_);
                if (!entry.holders.empty()) break;
                note_moved(table_.erase_slot(slots_left_ - 1), table_);
            }
        }
        if (slots_left_) return;
        if (std::exchange(must_repeat_, false)) {
            slots_left_ = table_.capacity();
        } else {
            forgetting_.each([this](WorkerNumber worker) { forgotten_.insert(worker); });
            forgetting_.clear();
        }
    }

    // An entry that wrapped around from the first slots to the last may have been missed by the sweep.
    void note_moved(bool wrapped, const BlockTable& table) {
        must_repeat_ = must_repeat_ || (wrapped && &table == &table_ && forgetting_.size());
    }

    BlockTable table_;
    BlockTable old_;
    std::size_t cursor_ = 0;  // all slots of the old table below it are empty
    WorkerSets sets_;
    WorkerSet to_forget_;   // workers to remove in the next sweep
    WorkerSet forgetting_;  // workers that the current sweep removes
    WorkerSet forgotten_;
    std::size_t slots_left_ = 0;  // the first slots, which the current sweep has not visited
    bool must_repeat_ = false;
    std::uint64_t multiplier_;
};

}  // namespace baton
