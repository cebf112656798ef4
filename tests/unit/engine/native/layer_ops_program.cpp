// Row operations on memory of exactly the size that they may touch, so that sanitizers detect accesses beyond it. With
// the argument "beyond" a row is declared longer than it is, which must be detected.

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "ops/instruction_sets.hpp"

using namespace baton;

namespace {

constexpr float kEps = 1e-6f;

float widened(float number) { return number; }

float widened(Bfloat16 number) {
    const std::uint32_t bits = static_cast<std::uint32_t>(number.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

void narrow(float number, float& to) { to = number; }

// Exact for numbers with few digits.
void narrow(float number, Bfloat16& to) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    to.bits = static_cast<std::uint16_t>(bits >> 16);
}

// Owns `count` small numbers.
template <typename T>
std::unique_ptr<T[]> numbers(std::size_t count, std::mt19937& random) {
    std::unique_ptr<T[]> made(new T[count]);
    for (std::size_t i = 0; i < count; ++i) narrow(static_cast<float>(static_cast<int>(random() % 65) - 32) / 8, made[i]);
    return made;
}

bool is_close(double found, double expected) {
    return std::fabs(found - expected) <= 0.004 + 0.008 * std::fabs(expected);
}

double gated(Activation activation, double gate, double up) {
    if (activation == Activation::kSilu) return gate / (1 + std::exp(-gate)) * up;
    if (activation == Activation::kGeluTanh) {
        return gate / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    }
    gate = std::min(gate, 7.0);
    return gate / (1 + std::exp(-1.702 * gate)) * (std::max(-7.0, std::min(up, 7.0)) + 1);
}

template <typename T>
bool agrees(const RowFunctions<T>& rows, std::size_t width, std::size_t claimed_width, std::mt19937& random) {
    auto x = numbers<T>(width, random), addend = numbers<T>(width, random), weight = numbers<T>(width, random);
    std::unique_ptr<T[]> result(new T[width]), before(new T[width]);
    std::copy(x.get(), x.get() + width, before.get());
    const float offset = width % 2 ? 1.0f : 0.0f;
    rows.add_norm(x.get(), addend.get(), {weight.get(), offset}, claimed_width, kEps, result.get());
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += static_cast<double>(widened(x[i])) * widened(x[i]);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
    bool holds = true;
    for (std::size_t i = 0; i < width; ++i) {
        holds &= is_close(widened(x[i]), widened(before[i]) + widened(addend[i]));
        holds &= is_close(widened(result[i]), widened(x[i]) * factor * (widened(weight[i]) + offset));
    }
    rows.norm(before.get(), {weight.get(), offset}, claimed_width, kEps, result.get());
    for (std::size_t activation = 0; activation < kNumActivations; ++activation) {
        rows.gate[activation](before.get(), addend.get(), claimed_width, result.get());
        for (std::size_t i = 0; i < width; ++i) {
            holds &= is_close(widened(result[i]), gated(static_cast<Activation>(activation), widened(before[i]), widened(addend[i])));
        }
    }
    const std::size_t half = width / 2;
    auto cos = numbers<float>(half, random), sin = numbers<float>(half, random);
    std::copy(before.get(), before.get() + 2 * half, result.get());
    rows.rotate(result.get(), {nullptr, 0.0f}, kEps, cos.get(), sin.get(), half, width % 4 == 0);
    for (std::size_t i = 0; i < half; ++i) {
        const std::size_t step = width % 4 ? 1 : 2, second = width % 4 ? half : 1;
        const double a = widened(before[step * i]), b = widened(before[step * i + second]);
        holds &= is_close(widened(result[i]), a * cos[i] - b * sin[i]);
        holds &= is_close(widened(result[half + i]), b * cos[i] + a * sin[i]);
    }
    rows.rotate(before.get(), {weight.get(), offset}, kEps, cos.get(), sin.get(), half, false);
    std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[width]);
    const float scale = rows.quantise(addend.get(), claimed_width, bytes.get());
    for (std::size_t i = 0; i < width; ++i) {
        holds &= std::fabs((bytes[i] - 128.0) * scale - widened(addend[i])) <= 0.501 * scale;
    }
    rows.scale(addend.get(), scale, weight.get(), claimed_width);
    rows.scale(addend.get(), scale, nullptr, claimed_width);
    return holds;
}

}  // namespace

int main(int argc, char**) {
    std::mt19937 random(7);
    for (const std::string& name : instruction_sets()) {
        for (std::size_t width = 1; width < 130; ++width) {
            if (!agrees(row_functions<float>(name), width, width, random) ||
                !agrees(row_functions<Bfloat16>(name), width, width, random)) {
                std::printf("%s: wrong at %zu\n", name.c_str(), width);
                return 1;
            }
        }
        std::printf("%s: all widths\n", name.c_str());
        if (argc > 1) agrees(row_functions<float>(name), 64, 80, random);
    }
}
