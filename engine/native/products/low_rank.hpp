// Products of low rank that adapters add to a layer's output.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "work.hpp"

namespace baton {

// Columns of the layer's output that change by `b @ inner`.
struct LowRankOutput {
    Weight b;  // [number of columns, rank]
    std::size_t first_column;
};

// Columns that have the same `inner = a @ x`.
struct LowRankPart {
    Weight a;  // [rank, inputs of the layer]
    std::vector<LowRankOutput> outputs;
};

// Rows of a step, and what is added to them.
struct LowRankRun {
    const std::vector<LowRankPart>* parts;
    std::size_t first_row, num_rows;
};

// The work of one call, divided into turns of some rows of a run for a part. A row's bits depend on its own part only.
class LowRankWork {
public:
    // rows: [num_rows, inputs]; result: [num_rows, stride].
    LowRankWork(const ProductFunctions& functions, const std::vector<LowRankRun>& runs, const std::uint16_t* rows,
                std::uint16_t* result, std::size_t stride)
        : functions_(functions), rows_(rows), result_(result), stride_(stride), pieces_(pieces_of(runs)), turns_(pieces_.size()) {}

    std::size_t num_turns() const { return pieces_.size(); }

    void work() {
        turns_.work([&](std::size_t turn) { compute(pieces_[turn]); });
    }

private:
    // Results of wide layers are in another page for each row: those of more rows at once come from memory one by one.
    static constexpr std::size_t kRowsOfPiece = 32;

    struct Piece {
        const LowRankPart* part;
        std::size_t first_row, num_rows;
    };

    static std::vector<Piece> pieces_of(const std::vector<LowRankRun>& runs) {
        std::vector<Piece> pieces;
        for (const LowRankRun& run : runs) {
            for (const LowRankPart& part : *run.parts) {
                for (std::size_t row = 0; row < run.num_rows; row += kRowsOfPiece) {
                    pieces.push_back({&part, run.first_row + row, std::min(kRowsOfPiece, run.num_rows - row)});
                }
            }
        }
        return pieces;
    }

    void compute(const Piece& piece) const {
        const Weight& a = piece.part->a;
        const std::unique_ptr<std::uint16_t[]> inner(new std::uint16_t[piece.num_rows * a.num_outputs]);
        multiply(functions_.plain, a, rows_ + piece.first_row * a.num_inputs, inner.get(), piece.num_rows, 0);
        for (const LowRankOutput& output : piece.part->outputs) {
            multiply(functions_.added, output.b, inner.get(),
                     result_ + piece.first_row * stride_ + output.first_column, piece.num_rows, stride_);
        }
    }

    void multiply(void (*compute)(const Task&, const Share&), const Weight& weight, const std::uint16_t* rows,
                  std::uint16_t* result, std::size_t num_rows, std::size_t stride) const {
        RowsWork inputs(functions_, rows, num_rows, weight);
        inputs.work();
        compute({weight, nullptr, inputs.row(0), nullptr, result, num_rows, stride},
                {0, 0, num_plain_steps(weight), 0, num_rows});
    }

    const ProductFunctions& functions_;
    const std::uint16_t* const rows_;
    std::uint16_t* const result_;
    const std::size_t stride_;
    const std::vector<Piece> pieces_;
    Turns turns_;
};

}  // namespace baton
