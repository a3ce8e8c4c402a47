// SPDX-License-Identifier: Apache-2.0
// The steps that export_onnx() and export_decoder() share.
#pragma once
#include "models/export/export.h"
#include "models/export/lower/lower.h"
#include "models/export/onnx/passes.h"
#include "models/export/trace/passes.h"

namespace xylem::exporting {

void check_name(const std::string& name, const char* what);  // [A-Za-z_][A-Za-z0-9_.]*
int chosen_opset(const TracedGraph& trace, const ExportOptions& options, ExportPrecision precision);
ExportPrecision chosen_precision(const ExportOptions& options);
OnnxGraph empty_graph(const TracedGraph& trace, const std::vector<ExportInput>& inputs, const ExportOptions& options);
// Precision, clean-up, metadata, file.
ExportReport finish(OnnxGraph& graph, std::vector<std::string> notes, const std::string& file,
                    const ExportOptions& options, ExportPrecision precision);

}  // namespace xylem::exporting
