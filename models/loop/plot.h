// SPDX-License-Identifier: Apache-2.0
// Line plots as SVG, for the loss curve in the run folder.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace xylem {

struct Series {
  std::string name, colour;
  std::vector<std::pair<double, double>> points;  // ascending x; values that are not finite leave a gap
  bool markers = false;
};

// A whole SVG document with axes, round tick values, a grid and a legend.
std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<Series>& series);

}  // namespace xylem
