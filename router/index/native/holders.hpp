// The workers that hold a block: a few for most blocks, nearly all for those of a shared system prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace baton {

using WorkerNumber = std::uint16_t;  // from 1; 0: none

constexpr WorkerNumber kMostWorkers = 0x7fff;

// A set of worker numbers: a bit set that grows to its highest member.
class WorkerSet {
public:
    std::size_t size() const { return size_; }
    const std::vector<std::uint64_t>& words() const { return words_; }

    bool contains(WorkerNumber worker) const {
        return worker / 64u < words_.size() && words_[worker / 64u] >> (worker % 64u) & 1;
    }

    bool insert(WorkerNumber worker) {
        if (contains(worker)) return false;
        if (worker / 64u >= words_.size()) words_.resize(worker / 64u + 1);
        words_[worker / 64u] |= std::uint64_t{1} << (worker % 64u);
        ++size_;
        return true;
    }

    bool erase(WorkerNumber worker) {
        if (!contains(worker)) return false;
        words_[worker / 64u] &= ~(std::uint64_t{1} << (worker % 64u));
        --size_;
        return true;
    }

    void clear() { *this = WorkerSet(); }

    template <typename Visit>
    void each(Visit visit) const {
        for (std::size_t i = 0; i < words_.size(); ++i) {
            for (std::uint64_t left = words_[i]; left; left &= left - 1) {
                visit(static_cast<WorkerNumber>(i * 64 + static_cast<std::size_t>(__builtin_ctzll(left))));
            }
        }
    }

private:
    std::vector<std::uint64_t> words_;
    std::size_t size_ = 0;
};

// Owns the sets of the blocks that many workers hold. A deque, which grows without moving its elements.
class WorkerSets {
public:
    WorkerSet& operator[](std::uint32_t place) { return sets_[place]; }
    const WorkerSet& operator[](std::uint32_t place) const { return sets_[place]; }

    std::size_t num_bytes() const {
        std::size_t total = sets_.size() * sizeof(WorkerSet) + free_.capacity() * sizeof(std::uint32_t);
        for (const WorkerSet& set : sets_) total += set.words().capacity() * sizeof(std::uint64_t);
        return total;
    }

    std::uint32_t take() {
        if (free_.empty()) {
            sets_.emplace_back();
            return static_cast<std::uint32_t>(sets_.size() - 1);
        }
        const std::uint32_t place = free_.back();
        free_.pop_back();
        return place;
    }

    void give_back(std::uint32_t place) {
        sets_[place].clear();
        free_.push_back(place);
    }

private:
    std::deque<WorkerSet> sets_;
    std::vector<std::uint32_t> free_;
};

// The holders of one block in 64 bits: up to four worker numbers, or the index of a set of more. Zero: no holder.
class Holders {
public:
    bool empty() const { return bits_ == 0; }

    bool contains(WorkerNumber worker, const WorkerSets& sets) const {
        return is_set() ? sets[place()].contains(worker) : lane_of(worker) < kLanes;
    }

    // False if the worker held it already.
    bool insert(WorkerNumber worker, WorkerSets& sets) {
        if (!is_set()) {
            if (lane_of(worker) < kLanes) return false;
            const unsigned lane = lane_of(0);
            if (lane < kLanes) {
                bits_ |= std::uint64_t{worker} << (16 * lane);
                return true;
            }
            become_set(sets);
        }
        return sets[place()].insert(worker);
    }

    // False if the worker did not hold it.
    bool erase(WorkerNumber worker, WorkerSets& sets) {
        if (!is_set()) {
            const unsigned lane = lane_of(worker);
            if (lane == kLanes) return false;
            bits_ &= ~(std::uint64_t{0xffff} << (16 * lane));
            return true;
        }
        if (!sets[place()].erase(worker)) return false;
        become_lanes_if_few(sets);
        return true;
    }

    void erase_all(const WorkerSet& lost, WorkerSets& sets) {
        if (!is_set()) {
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                if (at(lane) && lost.contains(at(lane))) bits_ &= ~(std::uint64_t{0xffff} << (16 * lane));
            }
            return;
        }
        WorkerSet& holders = sets[place()];
        lost.each([&](WorkerNumber worker) { holders.erase(worker); });
        become_lanes_if_few(sets);
    }

    template <typename Visit>
    void each(const WorkerSets& sets, Visit visit) const {
        if (is_set()) return sets[place()].each(visit);
        for (unsigned lane = 0; lane < kLanes; ++lane) {
            if (at(lane)) visit(at(lane));
        }
    }

private:
    static constexpr unsigned kLanes = 4;
    static constexpr std::size_t kFew = 2;  // fewer than the lanes, so one worker cannot trigger a conversion per event
    static constexpr std::uint64_t kIsSet = std::uint64_t{1} << 63;  // no worker's number has this bit

    bool is_set() const { return bits_ & kIsSet; }
    std::uint32_t place() const { return static_cast<std::uint32_t>(bits_); }
    WorkerNumber at(unsigned lane) const { return static_cast<WorkerNumber>(bits_ >> (16 * lane)); }

    unsigned lane_of(WorkerNumber worker) const {
        unsigned lane = 0;
        while (lane < kLanes && at(lane) != worker) ++lane;
        return lane;
    }

    void become_set(WorkerSets& sets) {
        const std::uint32_t place = sets.take();
        for (unsigned lane = 0; lane < kLanes; ++lane) sets[place].insert(at(lane));
        bits_ = kIsSet | place;
    }

    void become_lanes_if_few(WorkerSets& sets) {
        if (sets[place()].size() > kFew) return;
        const std::uint32_t old = place();
        bits_ = 0;
        sets[old].each([this](WorkerNumber worker) { bits_ = bits_ << 16 | worker; });
        sets.give_back(old);
    }

    std::uint64_t bits_ = 0;
};

}  // namespace baton
