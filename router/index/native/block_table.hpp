// A hash table from block hashes to the workers that hold the block.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "holders.hpp"

namespace baton {

struct BlockHash {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    bool operator==(const BlockHash& other) const { return low == other.low && high == other.high; }
};

struct Entry {
    BlockHash hash;
    Holders holders;  // never empty in a used slot, so zeroed memory is an empty table
};

struct Unmap {
    std::size_t num_bytes = 0;
    void operator()(Entry* slots) const { munmap(slots, num_bytes); }
};

// Open addressing with linear probing over a fixed number of slots.
class BlockTable {
public:
    BlockTable() = default;

    // The multiplier is odd and secret, so clients cannot craft prompts whose blocks collide.
    BlockTable(std::size_t capacity, std::uint64_t multiplier)
        : slots_(static_cast<Entry*>(allocate(capacity * sizeof(Entry))), Unmap{capacity * sizeof(Entry)}),
          capacity_(capacity),
          multiplier_(multiplier) {}

    BlockTable(BlockTable&& other) noexcept { *this = std::move(other); }

    BlockTable& operator=(BlockTable&& other) noexcept {
        slots_ = std::move(other.slots_);
        capacity_ = std::exchange(other.capacity_, 0);
        size_ = std::exchange(other.size_, 0);
        multiplier_ = other.multiplier_;
        return *this;
    }

    std::size_t size() const { return size_; }
    std::size_t capacity() const { return capacity_; }
    Entry& at(std::size_t slot) { return slots_.get()[slot]; }

    void prefetch(const BlockHash& hash) const {
        if (capacity_) __builtin_prefetch(slots_.get() + home(hash));
    }

    Entry* find(const BlockHash& hash) const {
        if (!size_) return nullptr;
        Entry* entry = slots_.get() + slot_for(hash);
        return entry->holders.empty() ? nullptr : entry;
    }

    // Adds an entry for a new hash; needs a free slot. The caller must set its holders at once.
    Entry& add(const BlockHash& hash) {
        Entry& entry = at(slot_for(hash));
        entry.hash = hash;
        ++size_;
        return entry;
    }

    // Empties a slot and closes the gap by moving back later entries of the run, so no tombstones are needed. Returns
    // true if an entry wrapped around from the first slots to the last.
    bool erase_slot(std::size_t gap) {
        Entry* slots = slots_.get();
        bool wrapped = false;
        for (std::size_t slot = next(gap); !slots[slot].holders.empty(); slot = next(slot)) {
            const std::size_t wanted = home(slots[slot].hash);
            const bool stays = gap <= slot ? (gap < wanted && wanted <= slot) : (gap < wanted || wanted <= slot);
            if (stays) continue;
            wrapped = wrapped || slot < gap;
            slots[gap] = slots[slot];
            gap = slot;
        }
        slots[gap] = Entry{};
        --size_;
        return wrapped;
    }

    bool erase(const Entry& entry) { return erase_slot(static_cast<std::size_t>(&entry - slots_.get())); }

private:
    static void* allocate(std::size_t num_bytes) {
        void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        madvise(memory, num_bytes, MADV_HUGEPAGE);  // nearly every probe hits another page; failure only costs speed
#endif
        return memory;
    }

    std::size_t home(const BlockHash& hash) const {
        return static_cast<std::size_t>((static_cast<unsigned __int128>(hash.low * multiplier_) * capacity_) >> 64);
    }

    std::size_t next(std::size_t slot) const { return slot + 1 == capacity_ ? 0 : slot + 1; }

    // Returns the hash's slot, or the empty slot where it would be added.
    std::size_t slot_for(const BlockHash& hash) const {
        const Entry* slots = slots_.get();
        std::size_t slot = home(hash);
        while (!slots[slot].holders.empty() && !(slots[slot].hash == hash)) slot = next(slot);
        return slot;
    }

    std::unique_ptr<Entry, Unmap> slots_;
    std::size_t capacity_ = 0;
    std::size_t size_ = 0;
    std::uint64_t multiplier_ = 1;
};

}  // namespace baton
