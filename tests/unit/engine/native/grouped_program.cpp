// Decoding and products of weights in groups on memory of exactly the size that they may touch, so that sanitizers detect
// accesses beyond it. With the argument "beyond" more rows are declared than there are, which must be detected.

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "grouped/instruction_sets.hpp"

using namespace baton;

namespace {

template <typename T>
std::unique_ptr<T[]> drawn(std::size_t count, std::mt19937& random) {
    std::unique_ptr<T[]> made(new T[count]);
    for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<T>(random() % 64);
    return made;
}

// Returns whether products are those of the decoded rows.
bool check(const GroupedFunctions& functions, int bits, bool has_minima, std::size_t num_inputs, std::size_t width,
           std::size_t extra_rows, std::mt19937& random) {
    const std::size_t num_outputs = 5, num_tokens = 7, groups = num_inputs / width;
    GroupedWeight weight{nullptr, nullptr, bits, false, num_outputs, num_inputs, {}, {}, {}, {}, {}};
    const auto low = drawn<std::uint8_t>(num_outputs * weight.low_bytes(), random);
    const auto high = drawn<std::uint8_t>(num_outputs * weight.high_bytes(), random);
    const auto scales = drawn<std::uint8_t>(num_outputs * groups, random);
    const auto outer = drawn<float>(num_outputs, random);
    weight.low = low.get();
    weight.high = weight.high_bytes() ? high.get() : nullptr;
    weight.scales = {scales.get(), Kind::kUint8, groups};
    weight.outer_scales = {outer.get(), Kind::kFloat, 1};
    if (has_minima) {
        weight.minima = {scales.get(), Kind::kUint8, groups};
        weight.outer_minima = {outer.get(), Kind::kFloat, 1};
    } else {
        weight.zeros = {scales.get(), Kind::kUint8, groups};
    }
    std::unique_ptr<float[]> buffer(new float[3 * weight.num_spans()]), decoded(new float[num_outputs * num_inputs]);
    for (std::size_t row = 0; row < num_outputs + extra_rows; ++row) {
        functions.decode(weight, row, buffer.get(), decoded.get() + row * num_inputs);
    }
    const auto tokens = drawn<float>(num_tokens * num_inputs, random);
    std::unique_ptr<float[]> sums(new float[num_outputs * num_tokens]);
    functions.dot(decoded.get(), num_outputs, tokens.get(), num_tokens, num_inputs, sums.get());
    for (std::size_t output = 0; output < num_outputs; ++output) {
        for (std::size_t token = 0; token < num_tokens; ++token) {
            double exact = 0, size = 1;
            for (std::size_t i = 0; i < num_inputs; ++i) {
                const double term = static_cast<double>(decoded[output * num_inputs + i]) * tokens[token * num_inputs + i];
                exact += term;
                size += term < 0 ? -term : term;
            }
            const double error = sums[output * num_tokens + token] - exact;
            if (error > 1e-5 * size || error < -1e-5 * size) return false;
        }
    }
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    const bool is_beyond = count > 1 && !std::strcmp(arguments[1], "beyond");
    std::mt19937 random(1);
    for (const std::string& name : instruction_sets()) {
        const GroupedFunctions functions = grouped_functions(name);
        for (const int bits : {4, 5, 6, 8}) {
            for (const std::size_t width : {16, 32, 96}) {
                for (const bool has_minima : {false, true}) {
                    if (!check(functions, bits, has_minima, 96, width, is_beyond, random)) {
                        std::printf("%s: %d bits in groups of %zu are wrong\n", name.c_str(), bits, width);
                        return 1;
                    }
                }
            }
        }
        std::printf("%s: all groups\n", name.c_str());
    }
}
