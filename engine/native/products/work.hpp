// The work of one call, divided among threads.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "panels.hpp"
#include "../threads.hpp"

namespace baton {

constexpr std::size_t kUnitsAtOnce = 1 << 15;  // approximate units of a weight per share
constexpr std::size_t kRowsAtOnce = 64;        // at least, if rows are divided
constexpr std::size_t kSharesOfThread = 4;     // at least, so that threads end together

// Counter of turns that threads take.
class Turns {
public:
    explicit Turns(std::size_t count) : count_(count) {}

    // Calls `compute(turn)` until all are taken; returns once every one has been computed.
    template <typename Compute>
    void work(const Compute& compute) {
        for (std::size_t turn; (turn = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
            compute(turn);
            num_done_.fetch_add(1, std::memory_order_release);
        }
        wait_until([&] { return num_done_.load(std::memory_order_acquire) >= count_; });
    }

private:
    const std::size_t count_;
    std::atomic<std::size_t> next_{0}, num_done_{0};
};

// Tasks with weights of one size, divided into shares. `num_steps`: steps per task, of two panels each.
inline std::vector<Share> shares_of(const std::vector<Task>& tasks, std::size_t num_steps, std::size_t num_threads) {
    std::vector<Share> shares;
    if (tasks.empty()) return shares;
    const std::size_t at_once = std::max<std::size_t>(1, kUnitsAtOnce / (2 * tasks[0].weight.panel_units()));
    const std::size_t parts = divided_up(kSharesOfThread * num_threads, tasks.size() * divided_up(num_steps, at_once));
    for (std::size_t task = 0; task < tasks.size(); ++task) {
        const std::size_t num_rows = tasks[task].num_rows;
        const std::size_t rows = divided_up(std::max(kRowsAtOnce, divided_up(num_rows, parts)), kMaxTile) * kMaxTile;
        for (std::size_t step = 0; step < num_steps; step += at_once) {
            for (std::size_t row = 0; row < num_rows; row += rows) {
                shares.push_back({task, step, std::min(step + at_once, num_steps), row, std::min(row + rows, num_rows)});
            }
        }
    }
    return shares;
}

#if defined(__x86_64__)

// All tasks' products of one kind.
template <typename Kind>
class ProductWork {
public:
    ProductWork(std::vector<Task> tasks, std::size_t num_threads)
        : tasks_(std::move(tasks)),
          shares_(tasks_.empty() ? std::vector<Share>()
                                 : shares_of(tasks_, Kind::num_steps(tasks_[0].weight), num_threads)),
          turns_(shares_.size()) {}

    std::size_t num_shares() const { return shares_.size(); }

    void work() {
        turns_.work([&](std::size_t turn) {
            products_avx512::compute<Kind>(tasks_[shares_[turn].task], shares_[turn]);
        });
    }

private:
    const std::vector<Task> tasks_;
    const std::vector<Share> shares_;
    Turns turns_;
};

// Rows of bfloat16 converted for a weight: unchanged, or floats or bytes in an owned buffer.
class RowsWork {
public:
    RowsWork(const std::uint16_t* rows, std::size_t num_rows, const Weight& weight)
        : rows_(rows),
          num_rows_(num_rows),
          width_(weight.num_inputs),
          num_units_(weight.num_units()),
          owned_(weight.is_bytes() || weight.is_floats() ? new Unit[num_rows * num_units_] : nullptr),
          scales_(weight.is_bytes() ? new float[num_rows] : nullptr),
          turns_(owned_ ? divided_up(num_rows, kMaxTile) : 0) {}

    void work() {
        turns_.work([&](std::size_t turn) {
            const std::size_t first = turn * kMaxTile, end = std::min(first + kMaxTile, num_rows_);
            if (scales_) {
                auto* bytes = reinterpret_cast<std::uint8_t*>(owned_.get());
                products_avx512::quantise_rows(rows_, width_, first, end, bytes, scales_.get());
            } else {
                products_avx512::widen_rows(rows_, width_, first, end, reinterpret_cast<float*>(owned_.get()));
            }
        });
    }

    const Unit* row(std::size_t index) const {
        return (owned_ ? owned_.get() : reinterpret_cast<const Unit*>(rows_)) + index * num_units_;
    }

    const float* scale(std::size_t index) const { return scales_ ? scales_.get() + index : nullptr; }

private:
    const std::uint16_t* rows_;
    const std::size_t num_rows_, width_, num_units_;
    const std::unique_ptr<Unit[]> owned_;
    const std::unique_ptr<float[]> scales_;
    Turns turns_;
};

#endif

}  // namespace baton
