// Index of the blocks in every worker's prefix cache.

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block_map.hpp"

namespace py = pybind11;

namespace baton {
namespace {

constexpr std::size_t kAhead = 12;  // prefetched probes; about the memory accesses that one core keeps in flight

// View of concatenated block hashes; the bytes must outlive it.
class PackedHashes {
public:
    explicit PackedHashes(const py::bytes& packed) {
        char* data = nullptr;
        Py_ssize_t length = 0;
        if (PyBytes_AsStringAndSize(packed.ptr(), &data, &length)) throw py::error_already_set();
        if (length % sizeof(BlockHash)) {
            throw py::value_error(std::to_string(length) + " bytes are not a multiple of 16-byte block hashes");
        }
        data_ = data;
        size_ = static_cast<std::size_t>(length) / sizeof(BlockHash);
    }

    std::size_t size() const { return size_; }

    BlockHash operator[](std::size_t index) const {
        BlockHash hash;
        std::memcpy(&hash, data_ + index * sizeof(BlockHash), sizeof(BlockHash));
        return hash;
    }

private:
    const char* data_;
    std::size_t size_;
};

struct Worker {
    py::object incarnation;  // None: the number is unused
    std::size_t num_blocks = 0;
};

// Range of candidates that have the prompt's first `low` blocks and none after the first `high`.
struct Search {
    std::size_t low;
    std::size_t high;
    std::size_t begin;
    std::size_t end;

    std::size_t middle() const { return low + (high - low + 1) / 2; }
};

class PrefixIndex {
public:
    PrefixIndex() : map_(secret_multiplier()), workers_(1) {}

    void reset(const std::string& incarnation) {
        const auto known = numbers_.find(incarnation);
        if (known == numbers_.end()) return;
        const WorkerNumber number = known->second;
        numbers_.erase(known);
        if (workers_[number].num_blocks) {
            map_.forget(number);
        } else {
            free_.push_back(number);
        }
        workers_[number] = Worker{py::none(), 0};
    }

    void update(const py::str& incarnation, const py::bytes& removed, const py::bytes& stored) {
        const PackedHashes removed_hashes(removed), stored_hashes(stored);
        const WorkerNumber worker = number_of(incarnation);
        std::size_t& num_blocks = workers_[worker].num_blocks;
        for (std::size_t i = 0; i < removed_hashes.size(); ++i) {
            if (i + kAhead < removed_hashes.size()) map_.prefetch(removed_hashes[i + kAhead]);
            num_blocks -= map_.erase(worker, removed_hashes[i]);
        }
        for (std::size_t i = 0; i < stored_hashes.size(); ++i) {
            if (i + kAhead < stored_hashes.size()) map_.prefetch(stored_hashes[i + kAhead]);
            num_blocks += map_.insert(worker, stored_hashes[i]);
        }
    }

    py::dict match(const py::bytes& packed) const {
        const PackedHashes hashes(packed);
        py::dict matches;
        if (!hashes.size()) return matches;
        std::vector<WorkerNumber> candidates = holders_of(hashes[0]);
        std::vector<Search> searches, halves;
        if (!candidates.empty()) searches.push_back({1, hashes.size(), 0, candidates.size()});
        while (!searches.empty()) {
            halves.clear();
            for (std::size_t i = 0; i < searches.size(); ++i) {
                if (i + kAhead < searches.size()) map_.prefetch(hashes[searches[i + kAhead].middle() - 1]);
                const Search& search = searches[i];
                if (search.low < search.high) {
                    split(search, hashes, candidates, halves);
                    continue;
                }
                for (std::size_t each = search.begin; each < search.end; ++each) {
                    matches[workers_[candidates[each]].incarnation] = py::int_(search.low);
                }
            }
            searches.swap(halves);
        }
        return matches;
    }

    std::size_t num_blocks(const std::string& incarnation) const {
        const auto known = numbers_.find(incarnation);
        return known == numbers_.end() ? 0 : workers_[known->second].num_blocks;
    }

    std::size_t num_entries() const { return map_.size(); }
    std::size_t num_bytes() const { return map_.num_bytes(); }

private:
    static std::uint64_t secret_multiplier() {
        std::random_device source;
        return (static_cast<std::uint64_t>(source()) << 32 | source()) | 1;
    }

    WorkerNumber number_of(const py::str& incarnation) {
        const std::string name = incarnation;
        const auto known = numbers_.find(name);
        if (known != numbers_.end()) return known->second;
        const WorkerNumber number = free_number();
        workers_[number] = Worker{incarnation, 0};
        numbers_[name] = number;
        return number;
    }

    // Returns a number that no entry has: a lost worker's is reused only after its last block is removed.
    WorkerNumber free_number() {
        if (free_.empty() && workers_.size() > kMostWorkers) map_.finish();
        map_.take_forgotten([this](WorkerNumber worker) { free_.push_back(worker); });
        if (!free_.empty()) {
            const WorkerNumber number = free_.back();
            free_.pop_back();
            return number;
        }
        if (workers_.size() > kMostWorkers) {
            throw py::value_error("the prefix index supports at most " + std::to_string(kMostWorkers) + " workers");
        }
        workers_.push_back(Worker{py::none(), 0});
        return static_cast<WorkerNumber>(workers_.size() - 1);
    }

    std::vector<WorkerNumber> holders_of(const BlockHash& hash) const {
        std::vector<WorkerNumber> found;
        if (const Holders* holders = map_.holders(hash)) {
            holders->each(map_.sets(), [&](WorkerNumber worker) {
                if (!workers_[worker].incarnation.is_none()) found.push_back(worker);
            });
        }
        return found;
    }

    // A single probe splits a search into the workers that have the middle block and those that do not.
    void split(const Search& search, const PackedHashes& hashes, std::vector<WorkerNumber>& candidates,
               std::vector<Search>& halves) const {
        const std::size_t middle = search.middle();
        const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(search.begin);
        const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(search.end);
        auto first_longer = end;
        if (const Holders* holders = map_.holders(hashes[middle - 1])) {
            first_longer = std::partition(begin, end, [&](WorkerNumber worker) {
                return !holders->contains(worker, map_.sets());
            });
        }
        const auto boundary = static_cast<std::size_t>(first_longer - candidates.begin());
        if (search.begin < boundary) halves.push_back({search.low, middle - 1, search.begin, boundary});
        if (boundary < search.end) halves.push_back({middle, search.high, boundary, search.end});
    }

    BlockMap map_;
    std::vector<Worker> workers_;  // by number; 0 is unused
    std::unordered_map<std::string, WorkerNumber> numbers_;
    std::vector<WorkerNumber> free_;
};

}  // namespace

PYBIND11_MODULE(prefix_index, module) {
    module.doc() = "The compiled prefix index.";
    py::class_<PrefixIndex>(module, "CompiledIndex", "The workers that hold each block.")
        .def(py::init<>())
        .def("reset", &PrefixIndex::reset, py::arg("incarnation"))
        .def("update", &PrefixIndex::update, py::arg("incarnation"), py::arg("removed"), py::arg("stored"))
        .def("match", &PrefixIndex::match, py::arg("hashes"))
        .def("num_blocks", &PrefixIndex::num_blocks, py::arg("incarnation"))
        .def_property_readonly("num_entries", &PrefixIndex::num_entries)
        .def_property_readonly("num_bytes", &PrefixIndex::num_bytes);
}

}  // namespace baton
