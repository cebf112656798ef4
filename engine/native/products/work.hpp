// The work of one call, divided among threads.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "../threads.hpp"
#include "instruction_sets.hpp"

namespace baton {

constexpr std::size_t kUnitsAtOnce = 1 << 15;  // approximate units of a weight per share
constexpr std::size_t kRowsAtOnce = 128;       // per share
constexpr std::size_t kSharesOfThread = 4;     // at least, so that threads end together

// Steps of a product, and of one with gates: two panels each.
inline std::size_t num_plain_steps(const Weight& weight) { return divided_up(weight.num_panels(), 2); }
inline std::size_t num_gated_steps(const Weight& weight) { return weight.num_panels() / 2; }

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

// Tasks with weights of one size, divided into shares. `num_steps`: steps per task, of two panels each. Shares of many rows
// are a block of them with as many steps as possible, so that the rows stay in a core's cache; those of few rows have some
// steps, whose panels stay there.
inline std::vector<Share> shares_of(const std::vector<Task>& tasks, std::size_t num_steps, std::size_t num_threads) {
    std::vector<Share> shares;
    if (tasks.empty()) return shares;
    const std::size_t of_panels = std::max<std::size_t>(1, kUnitsAtOnce / (2 * tasks[0].weight.panel_units()));
    std::size_t num_blocks = 0;
    for (const Task& task : tasks) num_blocks += divided_up(task.num_rows, kRowsAtOnce);
    num_blocks = std::max<std::size_t>(1, num_blocks);
    const std::size_t of_rows = divided_up(num_steps, divided_up(kSharesOfThread * num_threads, num_blocks));
    for (std::size_t task = 0; task < tasks.size(); ++task) {
        const std::size_t num_rows = tasks[task].num_rows, at_once = num_rows > kRowsAtOnce ? of_rows : of_panels;
        for (std::size_t row = 0; row < num_rows; row += kRowsAtOnce) {
            for (std::size_t step = 0; step < num_steps; step += at_once) {
                const std::size_t end_step = std::min(step + at_once, num_steps);
                shares.push_back({task, step, end_step, row, std::min(row + kRowsAtOnce, num_rows)});
            }
        }
    }
    return shares;
}

// All tasks' products of one kind.
class ProductWork {
public:
    // `compute`: of the kind, whose weights have `num_steps` steps.
    ProductWork(void (*compute)(const Task&, const Share&), std::size_t num_steps, std::vector<Task> tasks,
                std::size_t num_threads)
        : compute_(compute),
          tasks_(std::move(tasks)),
          shares_(shares_of(tasks_, num_steps, num_threads)),
          turns_(shares_.size()) {}

    std::size_t num_shares() const { return shares_.size(); }

    void work() {
        turns_.work([&](std::size_t turn) { compute_(tasks_[shares_[turn].task], shares_[turn]); });
    }

private:
    void (*const compute_)(const Task&, const Share&);
    const std::vector<Task> tasks_;
    const std::vector<Share> shares_;
    Turns turns_;
};

// Rows of bfloat16 converted for a weight: unchanged, or floats or bytes in an owned buffer.
class RowsWork {
public:
    RowsWork(const ProductFunctions& functions, const std::uint16_t* rows, std::size_t num_rows, const Weight& weight)
        : convert_(functions.convert),
          weight_(weight),
          rows_(rows),
          num_rows_(num_rows),
          row_units_(weight.num_units() * functions.steps_of(weight)),
          owned_(weight.is_bytes() || weight.is_floats() || !functions.takes_pairs ? new Unit[num_rows * row_units_]
                                                                                  : nullptr),
          scales_(weight.is_bytes() ? new float[num_rows] : nullptr),
          turns_(owned_ ? divided_up(num_rows, kRowsOfTurn) : 0) {}

    void work() {
        turns_.work([&](std::size_t turn) {
            const std::size_t first = turn * kRowsOfTurn, end = std::min(first + kRowsOfTurn, num_rows_);
            convert_(weight_, rows_, first, end, owned_.get(), scales_.get());
        });
    }

    const Unit* row(std::size_t index) const {
        return (owned_ ? owned_.get() : reinterpret_cast<const Unit*>(rows_)) + index * row_units_;
    }

    const float* scale(std::size_t index) const { return scales_ ? scales_.get() + index : nullptr; }

private:
    static constexpr std::size_t kRowsOfTurn = 8;

    void (*const convert_)(const Weight&, const std::uint16_t*, std::size_t, std::size_t, Unit*, float*);
    const Weight weight_;
    const std::uint16_t* const rows_;
    const std::size_t num_rows_, row_units_;
    const std::unique_ptr<Unit[]> owned_;
    const std::unique_ptr<float[]> scales_;
    Turns turns_;
};

}  // namespace baton
