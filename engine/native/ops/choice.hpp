// Expert routing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

// Routing by scores: group-limited top-k (DeepSeek-V2, arXiv 2405.04434, section 2.2.2; DeepSeek-V3,
// arXiv 2412.19437, section 2.1.2). Without groups there is one.
struct ChoiceRule {
    std::size_t num_experts;
    std::size_t num_chosen;
    std::size_t num_groups;
    std::size_t num_best_groups;   // whose experts may be chosen
    std::size_t num_group_scores;  // largest scores of a group, whose sum is the group's score
    bool is_normed;                // chosen scores add up to one
    float factor;

    bool is_possible() const {
        return num_groups > 0 && num_experts % num_groups == 0 && num_experts > 0 && num_best_groups > 0 &&
               num_best_groups <= num_groups && num_group_scores <= group_size() && num_chosen > 0 &&
               num_chosen <= num_best_groups * group_size();
    }
    std::size_t group_size() const { return num_experts / num_groups; }
};

// Indices of the largest numbers, in descending order, ties by lowest index. NaN
// compares greater than all numbers, so that it is not hidden.
class Greatest {
public:
    explicit Greatest(std::size_t count) : count_(count) { found_.reserve(count + 1); }

    void add(float number, std::size_t index) {
        std::size_t place = found_.size();
        while (place > 0 && is_less(found_[place - 1].number, number)) --place;
        if (place == count_) return;
        found_.insert(found_.begin() + static_cast<std::ptrdiff_t>(place), {number, index});
        if (found_.size() > count_) found_.pop_back();
    }

    void clear() { found_.clear(); }
    std::size_t index(std::size_t place) const { return found_[place].index; }

    float sum() const {
        float total = 0;
        for (const Found& each : found_) total += each.number;
        return total;
    }

private:
    struct Found {
        float number;
        std::size_t index;
    };

    static bool is_less(float a, float b) { return !std::isnan(a) && !(a >= b); }

    const std::size_t count_;
    std::vector<Found> found_;
};

// Routes tokens one by one; owns the buffers of one thread.
class ExpertChooser {
public:
    explicit ExpertChooser(const ChoiceRule& rule)
        : rule_(rule), experts_(rule.num_chosen), groups_(rule.num_best_groups), of_group_(rule.num_group_scores),
          choice_(rule.num_experts) {}

    // `scores`: of the experts; `bias`: added to them for routing only, or null.
    void choose(const float* scores, const float* bias, float* weights, std::int64_t* experts) {
        for (std::size_t i = 0; i < rule_.num_experts; ++i) choice_[i] = bias ? scores[i] + bias[i] : scores[i];
        experts_.clear();
        if (rule_.num_groups == 1) {
            add(0);
        } else {
            find_groups();
            for (std::size_t i = 0; i < rule_.num_best_groups; ++i) best_[i] = groups_.index(i);
            std::sort(best_.begin(), best_.end());  // ties: the lowest index first
            for (const std::size_t group : best_) add(group);
        }
        float total = 0;
        for (std::size_t i = 0; i < rule_.num_chosen; ++i) {
            experts[i] = static_cast<std::int64_t>(experts_.index(i));
            weights[i] = scores[experts_.index(i)];
            total += weights[i];
        }
        const float factor = rule_.is_normed ? rule_.factor / (total + 1e-20f) : rule_.factor;
        for (std::size_t i = 0; i < rule_.num_chosen; ++i) weights[i] *= factor;
    }

private:
    void add(std::size_t group) {
        const std::size_t first = group * rule_.group_size();
        for (std::size_t i = first; i < first + rule_.group_size(); ++i) experts_.add(choice_[i], i);
    }

    void find_groups() {
        groups_.clear();
        for (std::size_t group = 0; group < rule_.num_groups; ++group) {
            const std::size_t first = group * rule_.group_size();
            of_group_.clear();
            for (std::size_t i = first; i < first + rule_.group_size(); ++i) of_group_.add(choice_[i], i);
            groups_.add(of_group_.sum(), group);
        }
    }

    const ChoiceRule rule_;
    Greatest experts_, groups_, of_group_;
    std::vector<float> choice_;
    std::vector<std::size_t> best_ = std::vector<std::size_t>(rule_.num_best_groups);
};

}  // namespace baton
