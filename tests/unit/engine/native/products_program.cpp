// Products of floats, pairs and bytes on memory of exactly the size that they may touch, so that sanitizers detect
// accesses beyond it. With the argument "beyond" more rows are declared than there are, which must be detected.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "products/panels.hpp"
#include "products/work.hpp"

using namespace baton;

namespace {

using Halves16 = std::unique_ptr<std::uint16_t[]>;

float widened(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// Owns `count` numbers of few digits between -1 and 1.
Halves16 numbers(std::size_t count, std::mt19937& random) {
    Halves16 made(new std::uint16_t[count]);
    for (std::size_t i = 0; i < count; ++i) {
        const float number = static_cast<float>(static_cast<int>(random() % 33) - 16) / 16;
        std::uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        made[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    return made;
}

// A weight [num_outputs, num_inputs] in panels.
Halves16 packed(const std::uint16_t* weight, std::size_t num_outputs, std::size_t num_inputs) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    Halves16 made(new std::uint16_t[num_panels * num_inputs * kColumns]);
    std::size_t at = 0;
    for (std::size_t panel = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; input += 2) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                for (std::size_t k = 0; k < 2; ++k) {
                    made[at++] = column < num_outputs ? weight[column * num_inputs + input + k] : 0;
                }
            }
        }
    }
    return made;
}

#if defined(__x86_64__)

using products_avx512::Gated;
using products_avx512::Plain;

// Runs one task on two threads.
template <typename Kind>
void run(const Task& task, std::size_t more_rows) {
    std::vector<Task> tasks{task};
    tasks[0].num_rows += more_rows;
    ProductWork<Kind> product(tasks, 2);
    const auto work = [&] { product.work(); };
    std::thread other(work);
    work();
    other.join();
}

// Compares a product of rows and a weight in bytes with sums in double precision.
bool agrees_in_bytes(std::size_t num_rows, std::size_t num_outputs, std::size_t num_inputs, std::mt19937& random) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    const Halves16 rows = numbers(num_rows * num_inputs, random), result(new std::uint16_t[num_rows * num_outputs]);
    const std::unique_ptr<std::int8_t[]> weight(new std::int8_t[num_panels * kColumns * num_inputs]);
    const std::unique_ptr<float[]> scales(new float[num_panels * kColumns]);
    const std::unique_ptr<std::int32_t[]> offsets(new std::int32_t[num_panels * kColumns]);
    std::size_t at = 0;
    std::vector<std::vector<int>> plain(num_panels * kColumns, std::vector<int>(num_inputs));
    for (std::size_t panel = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; input += 4) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                for (std::size_t k = 0; k < 4; ++k) {
                    weight[at] = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
                    plain[column][input + k] = weight[at++];
                }
            }
        }
    }
    for (std::size_t column = 0; column < num_panels * kColumns; ++column) {
        scales[column] = 0.01f * static_cast<float>(column + 1);
        offsets[column] = 0;
        for (const int each : plain[column]) offsets[column] += 128 * each;
    }
    const Weight panels{reinterpret_cast<const Unit*>(weight.get()), num_outputs, num_inputs, 4, scales.get(), offsets.get()};
    RowsWork inputs(rows.get(), num_rows, panels);
    std::thread other([&] { inputs.work(); });
    inputs.work();
    other.join();
    run<Plain>({panels, nullptr, inputs.row(0), inputs.scale(0), result.get(), num_rows}, 0);
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(inputs.row(row));
        for (std::size_t column = 0; column < num_outputs; ++column) {
            double expected = 0;
            for (std::size_t k = 0; k < num_inputs; ++k) expected += (bytes[k] - 128.0) * plain[column][k];
            expected *= static_cast<double>(*inputs.scale(row)) * scales[column];
            holds &= std::fabs(widened(result[row * num_outputs + column]) - expected) <= 0.005 * std::fabs(expected) + 1e-6;
        }
    }
    return holds;
}

// Compares a product of rows and a weight in floats with sums in double precision.
bool agrees_in_floats(std::size_t num_rows, std::size_t num_outputs, std::size_t num_inputs, std::mt19937& random) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    const Halves16 rows = numbers(num_rows * num_inputs, random), weight = numbers(num_outputs * num_inputs, random);
    const std::unique_ptr<float[]> panels(new float[num_panels * num_inputs * kColumns]);
    const std::unique_ptr<float[]> result(new float[num_rows * num_outputs]);
    for (std::size_t panel = 0, at = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; ++input) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                panels[at++] = column < num_outputs ? widened(weight[column * num_inputs + input]) : 0;
            }
        }
    }
    const Weight floats{reinterpret_cast<const Unit*>(panels.get()), num_outputs, num_inputs, 1, nullptr, nullptr};
    RowsWork inputs(rows.get(), num_rows, floats);
    inputs.work();
    run<Plain>({floats, nullptr, inputs.row(0), nullptr, result.get(), num_rows}, 0);
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        for (std::size_t column = 0; column < num_outputs; ++column) {
            double expected = 0;
            for (std::size_t k = 0; k < num_inputs; ++k) {
                expected += static_cast<double>(widened(rows[row * num_inputs + k])) * widened(weight[column * num_inputs + k]);
            }
            holds &= std::fabs(result[row * num_outputs + column] - expected) <= 1e-4;
        }
    }
    return holds;
}

bool agrees(std::size_t num_rows, std::size_t num_outputs, std::size_t num_inputs, bool is_gated, std::size_t more_rows,
            std::mt19937& random) {
    const std::size_t width = is_gated ? num_outputs / 2 : num_outputs;
    const Halves16 rows = numbers(num_rows * num_inputs, random), weight = numbers(num_outputs * num_inputs, random);
    const Halves16 bias = numbers(num_outputs, random), panels = packed(weight.get(), num_outputs, num_inputs);
    const Halves16 result(new std::uint16_t[num_rows * width]);
    const Task task{{reinterpret_cast<const Unit*>(panels.get()), num_outputs, num_inputs, 2, nullptr, nullptr},
                    num_rows % 2 && !is_gated ? bias.get() : nullptr,
                    reinterpret_cast<const Unit*>(rows.get()),
                    nullptr,
                    result.get(),
                    num_rows};
    is_gated ? run<Gated>(task, more_rows) : run<Plain>(task, more_rows);
    const auto product = [&](std::size_t row, std::size_t output) {
        double total = task.bias ? widened(bias[output]) : 0;
        for (std::size_t k = 0; k < num_inputs; ++k) {
            total += static_cast<double>(widened(rows[row * num_inputs + k])) * widened(weight[output * num_inputs + k]);
        }
        return total;
    };
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        for (std::size_t column = 0; column < width; ++column) {
            double expected = product(row, column);
            if (is_gated) expected = expected / (1 + std::exp(-expected)) * product(row, width + column);
            holds &= std::fabs(widened(result[row * width + column]) - expected) <= 0.02 + 0.01 * std::fabs(expected);
        }
    }
    return holds;
}

#endif

}  // namespace

int main(int argc, char**) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
        std::mt19937 random(7);
        for (std::size_t num_rows = 1; num_rows < 150; num_rows += 1 + num_rows / 3) {
            for (std::size_t width = 1; width < 70; width += 9) {
                const std::size_t num_inputs = 2 * (random() % 40 + 1);
                if (!agrees(num_rows, width, num_inputs, false, 0, random) ||
                    !agrees(num_rows, 2 * kColumns * (width % 3 + 1), num_inputs, true, 0, random) ||
                    !agrees_in_bytes(num_rows, width, 2 * num_inputs, random) ||
                    !agrees_in_floats(num_rows, width, num_inputs - 1, random)) {
                    std::printf("wrong at %zu, %zu, %zu\n", num_rows, width, num_inputs);
                    return 1;
                }
            }
        }
        if (!agrees(130, 20, 8194, false, 0, random)) return 1;
        std::printf("all shapes\n");
        if (argc > 1) agrees(8, 32, 32, false, 1, random);
        return 0;
    }
#endif
    std::printf("this processor has no products of pairs\n");
}
