// The chained hashes of a prompt's blocks.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "blake2b.hpp"

namespace py = pybind11;

namespace baton {
namespace {

constexpr std::size_t kHashBytes = 16;
constexpr std::size_t kTokenBytes = 4;
constexpr std::size_t kBlocksWithoutGil = 64;  // a shorter chain finishes before another thread would wake up

// Converts a token id. Raises TypeError or OverflowError if it is invalid.
std::uint32_t read_token(PyObject* item) {
    unsigned long token;
    if (PyLong_CheckExact(item)) {
        token = PyLong_AsUnsignedLong(item);
    } else {
        const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(item));
        if (!number) throw py::error_already_set();
        token = PyLong_AsUnsignedLong(number.ptr());
    }
    if (token == static_cast<unsigned long>(-1) && PyErr_Occurred()) throw py::error_already_set();
    if (token > std::numeric_limits<std::uint32_t>::max()) {
        PyErr_SetString(PyExc_OverflowError, "a token id takes more than 32 bits");
        throw py::error_already_set();
    }
    return static_cast<std::uint32_t>(token);
}

// The tokens of the full blocks from `start` on. Items are fetched one by one, since converting one may run arbitrary code.
std::vector<unsigned char> read_tokens(const py::object& sequence, std::size_t start, std::size_t num_tokens) {
    std::vector<unsigned char> tokens(num_tokens * kTokenBytes);
    for (std::size_t i = 0; i < num_tokens; ++i) {
        if (start + i >= static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()))) {
            throw py::value_error("the token ids became fewer while they were read");
        }
        const std::uint32_t token = read_token(PySequence_Fast_GET_ITEM(sequence.ptr(), static_cast<Py_ssize_t>(start + i)));
        store_little_endian(token, tokens.data() + i * kTokenBytes);
    }
    return tokens;
}

// Each block's message is its parent's hash, then its tokens.
std::string chain(const unsigned char* parent, const std::vector<unsigned char>& tokens, std::size_t block_bytes) {
    const std::size_t num_blocks = tokens.size() / block_bytes;
    std::string hashes(num_blocks * kHashBytes, '\0');
    std::vector<unsigned char> message(kHashBytes + block_bytes);
    std::memcpy(message.data(), parent, kHashBytes);
    for (std::size_t i = 0; i < num_blocks; ++i) {
        std::memcpy(message.data() + kHashBytes, tokens.data() + i * block_bytes, block_bytes);
        Blake2b::digest(message.data(), message.size(), message.data(), kHashBytes);
        std::memcpy(hashes.data() + i * kHashBytes, message.data(), kHashBytes);
    }
    return hashes;
}

py::bytes chain_hashes(const std::string& parent, const py::object& token_ids, std::size_t block_size,
                       std::size_t start) {
    if (parent.size() != kHashBytes) throw py::value_error("a parent hash has 16 bytes");
    if (!block_size || block_size > std::numeric_limits<std::uint32_t>::max()) {
        throw py::value_error("a block has one token or more");
    }
    const py::object sequence =
        py::reinterpret_steal<py::object>(PySequence_Fast(token_ids.ptr(), "token ids are a sequence"));
    if (!sequence) throw py::error_already_set();
    const auto num_known = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
    const std::size_t num_blocks = num_known > start ? (num_known - start) / block_size : 0;
    if (!num_blocks) return py::bytes();  // also for a block size that no prompt reaches
    const std::vector<unsigned char> tokens = read_tokens(sequence, start, num_blocks * block_size);
    const auto* first = reinterpret_cast<const unsigned char*>(parent.data());
    if (num_blocks <= kBlocksWithoutGil) return py::bytes(chain(first, tokens, block_size * kTokenBytes));
    std::string hashes;
    {
        py::gil_scoped_release others_may_run;
        hashes = chain(first, tokens, block_size * kTokenBytes);
    }
    return py::bytes(hashes);
}

}  // namespace

PYBIND11_MODULE(block_hash, module) {
    module.doc() = "The compiled chain of block hashes.";
    module.def("chain_hashes", &chain_hashes, py::arg("parent"), py::arg("token_ids"), py::arg("block_size"),
               py::arg("start"));
}

}  // namespace baton
