// SPDX-License-Identifier: Apache-2.0
// `xylem doctor`: what was built, what the machine has, and what does not go together. Libraries are asked through
// dlsym, so that it works in every build and without a GPU.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "core/device/device.h"
#include "core/util/parallel.h"
#include "core/util/text.h"
#include "distributed/launch/checks.h"
#include "distributed/topology/detect.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/measure.h"
#include "models/export/runtime/ort.h"
#include "models/export/runtime/tensorrt.h"
#include "models/loop/run_log.h"

namespace xylem::cli {
namespace {

// A function of a library that is loaded already or can be loaded; null when there is none.
template <class F>
F* symbol(const char* name, const char* library = nullptr) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found && library)
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL)) found = dlsym(handle, name);
  return reinterpret_cast<F*>(found);
}

std::string dotted(int major, int minor, int patch = -1) {
  std::string text = std::to_string(major) + "." + std::to_string(minor);
  return patch < 0 ? text : text + "." + std::to_string(patch);
}
std::string cuda_version(int v) { return dotted(v / 1000, v % 1000 / 10); }

struct Gpu {
  std::string name;
  int major = 0, minor = 0;
  size_t memory = 0;
};

struct Driver {
  std::string version;  // "580.65.06"
  int cuda = 0;         // newest CUDA version it supports: 13000
  std::string trouble;  // why there is none
  std::vector<Gpu> gpus;
};

Driver ask_driver() {
  Driver d;
  auto* init = symbol<int(unsigned)>("cuInit", "libcuda.so.1");
  if (!init) {
    d.trouble = "no NVIDIA driver (libcuda.so.1 is not there)";
    return d;
  }
  if (int status = init(0)) {
    d.trouble = status == 100 ? "the NVIDIA driver sees no GPU"
                              : "the NVIDIA driver does not start: cuInit gives error " + std::to_string(status);
    return d;
  }
  const char* cuda = "libcuda.so.1";
  if (auto* version = symbol<int(int*)>("cuDriverGetVersion", cuda)) version(&d.cuda);
  auto* count = symbol<int(int*)>("cuDeviceGetCount", cuda);
  auto* name = symbol<int(char*, int, int)>("cuDeviceGetName", cuda);
  auto* memory = symbol<int(size_t*, int)>("cuDeviceTotalMem_v2", cuda);
  auto* attribute = symbol<int(int*, int, int)>("cuDeviceGetAttribute", cuda);
  int n = 0;
  if (count && name && memory && attribute && count(&n) == 0)
    for (int i = 0; i < n; ++i) {
      Gpu gpu;
      char text[128] = "";
      name(text, sizeof text, i);
      gpu.name = text;
      memory(&gpu.memory, i);
      attribute(&gpu.major, 75, i);  // compute capability
      attribute(&gpu.minor, 76, i);
      d.gpus.push_back(gpu);
    }
  const char* nvml = "libnvidia-ml.so.1";
  auto* start = symbol<int()>("nvmlInit_v2", nvml);
  auto* version = symbol<int(char*, unsigned)>("nvmlSystemGetDriverVersion", nvml);
  char text[96] = "";
  if (start && version && start() == 0 && version(text, sizeof text) == 0) d.version = text;
  return d;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

double total_memory() { return double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE)); }

void row(const char* name, const std::string& value) { std::printf("  %-12s %s\n", name, value.c_str()); }

// Whether code built for `targets` ("80-real,90a-real,90-virtual") runs on a GPU: binary code within the same major
// version, PTX on any later one, 90a on 9.0 alone.
bool covers(const std::string& targets, int major, int minor) {
  for (size_t at = 0; at < targets.size();) {
    size_t end = std::min(targets.find(',', at), targets.size());
    std::string target = targets.substr(at, end - at);
    at = end + 1;
    size_t digits = target.find_first_not_of("0123456789");
    bool exact = digits != std::string::npos && target[digits] == 'a', ptx = !target.ends_with("-real");
    int value = std::atoi(target.c_str()), gpu = major * 10 + minor;
    if (exact ? gpu == value : (ptx && gpu >= value) || (gpu / 10 == value / 10 && gpu >= value)) return true;
  }
  return false;
}

void find_gpu_problems(const Driver& driver, int runtime, std::vector<std::string>& problems) {
  if (!built_with_cuda()) {
    if (!driver.gpus.empty())
      problems.push_back(
          "this machine has a GPU but this is a CPU build: install the CUDA toolkit and cuDNN, then "
          "`cmake --preset release && cmake --build build/release`");
    return;
  }
  if (!driver.trouble.empty())
    problems.push_back(driver.trouble +
                       ": training runs on the CPU. Install the driver; in a container, start it with "
                       "access to the GPUs (docker run --gpus all)");
  if (driver.cuda > 0 && driver.cuda / 1000 < runtime / 1000)
    problems.push_back("the driver supports CUDA " + cuda_version(driver.cuda) +
                       " at most but Xylem was built with CUDA " + cuda_version(runtime) +
                       ": update the driver, or build with a toolkit of CUDA " + std::to_string(driver.cuda / 1000));
  for (const Gpu& gpu : driver.gpus)
    if (!covers(XY_CUDA_TARGETS, gpu.major, gpu.minor))
      problems.push_back("this build holds code for " XY_CUDA_TARGETS " but " + gpu.name + " has compute capability " +
                         dotted(gpu.major, gpu.minor) +
                         ": configure with -DXY_CUDA_ARCHS=" + std::to_string(gpu.major) + std::to_string(gpu.minor));
}

// What would stop or slow a job of several ranks here.
void find_launch_problems(const Driver& driver, std::vector<std::string>& problems) {
  RankInfo one = describe_this_process();
  one.local_size = 2;  // the checks of shared memory and of NCCL are about several
  one.device = driver.gpus.empty() ? "cpu" : "cuda:0";
  one.threads = 1;  // told above
  for (auto check : {check_memory, check_nccl_variables, check_cpus})
    for (const LaunchProblem& p : check({one})) problems.push_back("for jobs of several ranks: " + p.text);
}

// PCIe under load, copies between GPUs timed and checked; the findings judge them.
void measure_gpus(const Driver& driver, Topology& t) {
  std::printf("measurements\n");
  if (!built_with_cuda() || driver.gpus.empty()) {
    row("none", !built_with_cuda() ? "this is a CPU build" : "there is no GPU to measure");
    return;
  }
  measure(t);
  char text[160];
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    if (!g.host_copy_gbps) continue;
    std::snprintf(text, sizeof text, "from the host %.1f GB/s", *g.host_copy_gbps);
    std::string line = text;
    if (g.pcie_judged)
      line += ", PCIe Gen" + std::to_string(g.pcie.generation) + " x" + std::to_string(g.pcie.width) + " under load";
    if (g.multicast) line += *g.multicast ? ", multicast (NVLS)" : ", no multicast (NVLS)";
    if (g.pcie_replays_load) line += ", " + std::to_string(*g.pcie_replays_load) + " PCIe replays";
    if (g.nvlink_errors_load) line += ", " + std::to_string(*g.nvlink_errors_load) + " NVLink errors";
    row(t.device_name(i).c_str(), line);
  }
  for (int a = 0; a < int(t.gpus.size()); ++a)
    for (int b = 0; b < int(t.gpus.size()); ++b) {
      const DevicePair& p = t.pair(a, b);
      if (a == b || !p.copies_right) continue;
      std::string speed = "no peer access, through the host";
      if (p.measured_gbps) {
        std::snprintf(text, sizeof text, "%s, %.1f GB/s", p.str().c_str(), *p.measured_gbps);
        speed = text;
      }
      row((t.device_name(a) + "-" + t.device_name(b)).c_str(), speed + (*p.copies_right ? "" : ", THE DATA IS WRONG"));
    }
}

void run(bool measure_too) {
  std::vector<std::string> problems;
  std::printf("xylem " XY_VERSION "\nbuild\n");
  row("compiler", XY_COMPILER ", " XY_BUILD_TYPE ", -march=" XY_CPU_TARGET);
  row("CUDA code", built_with_cuda() ? "for " XY_CUDA_TARGETS : "none: CPU build");
  if (*XY_FEATURES) row("with", XY_FEATURES);
  if (*XY_LACKING) row("without", XY_LACKING);

  std::printf("machine\n");
  row("CPU", cpu_model());
  row("threads", std::to_string(num_threads()) + " of " + std::to_string(std::thread::hardware_concurrency()));
  row("memory", human_bytes(total_memory()));
#ifdef _OPENMP
  if (num_threads() < int(std::thread::hardware_concurrency()))
    problems.push_back("OpenMP uses " + std::to_string(num_threads()) + " of " +
                       std::to_string(std::thread::hardware_concurrency()) +
                       " cores: look at OMP_NUM_THREADS and the CPU mask of the job");
#else
  problems.push_back("this build has no OpenMP and uses one core: build with a compiler that has it");
#endif
  Driver driver = ask_driver();
  row("driver", driver.trouble.empty()
                    ? (driver.version.empty() ? "loaded" : driver.version) + ", CUDA up to " + cuda_version(driver.cuda)
                    : driver.trouble);
  for (size_t i = 0; i < driver.gpus.size(); ++i) {
    const Gpu& g = driver.gpus[i];
    row(("GPU " + std::to_string(i)).c_str(),
        g.name + ", " + human_bytes(double(g.memory)) + ", compute capability " + dotted(g.major, g.minor));
  }

  std::printf("libraries\n");
  int runtime = 0;
  if (auto* version = symbol<int(int*)>("cudaRuntimeGetVersion")) version(&runtime);
  row("CUDA", runtime ? cuda_version(runtime) : "not in this build");
  auto* cudnn = symbol<size_t()>("cudnnGetVersion");
  size_t v = cudnn ? cudnn() : 0;
  row("cuDNN", cudnn ? dotted(int(v / 10000), int(v / 100 % 100), int(v % 100)) : "not in this build");
  if (cudnn && v < 90000) problems.push_back("cuDNN is older than 9.0, which Xylem needs: install cuDNN 9");
  auto* cublas = symbol<size_t()>("cublasLtGetVersion");
  size_t b = cublas ? cublas() : 0;
  row("cuBLASLt", cublas ? dotted(int(b / 10000), int(b / 100 % 100), int(b % 100)) : "not in this build");
  int nccl = 0;
  if (auto* version = symbol<int(int*)>("ncclGetVersion", "libnccl.so.2")) version(&nccl);
  row("NCCL", !built_with_cuda() ? "not in this build"
              : nccl             ? dotted(nccl / 10000, nccl / 100 % 100, nccl % 100)
                                 : "not found");
  char mpi[8192] = "";
  int length = 0;
  if (auto* version = symbol<int(char*, int*)>("MPI_Get_library_version", "libmpi.so.40")) version(mpi, &length);
  std::string mpi_text = length ? mpi : "not found";
  row("MPI", mpi_text.substr(0, mpi_text.find_first_of(",\n")));
  unsigned h[3] = {};
  auto* hdf5 = symbol<int(unsigned*, unsigned*, unsigned*)>("H5get_libversion");
  if (hdf5) hdf5(&h[0], &h[1], &h[2]);
  row("HDF5", hdf5 ? dotted(int(h[0]), int(h[1]), int(h[2])) : "not in this build: no HDF5 datasets");
  if (!hdf5) problems.push_back("this build reads no HDF5 files: install libhdf5-dev and configure again");

  row("ONNX Runtime", OrtSession::available() ? OrtSession::version()
                                              : "not found: `xylem export --verify` needs it (scripts/setup.sh)");
  row("TensorRT", tensorrt::available() ? tensorrt::version()
                                        : "not found: exports for it are checked by rules alone (scripts/setup.sh "
                                          "tensorrt, or XY_TENSORRT)");

  find_gpu_problems(driver, runtime, problems);
  find_launch_problems(driver, problems);
  // What `xylem topo` finds about the machine: its GPUs, links, limits and variables.
  Detection d = detect();
  read_multicast(d.topology);
  if (measure_too) measure_gpus(driver, d.topology);
  std::vector<Finding> findings = find_problems(d.topology, d.environment);
  if (!problems.empty()) std::printf("problems\n");
  for (const std::string& p : problems) std::printf("  - %s\n", p.c_str());
  if (!findings.empty()) std::printf("findings\n%s", format_findings(findings).c_str());
  const bool harmless =
      std::all_of(findings.begin(), findings.end(), [](auto& f) { return f.severity == Severity::info; });
  if (problems.empty() && harmless) std::printf("no problems found\n");
  if (std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.severity == Severity::error; }))
    throw Exit{1};
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  auto measure_too = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("doctor", "Versions, features, GPUs, and what does not go together");
  c->add_flag("--measure", *measure_too, "Copy between host and GPUs and between GPUs, check and time it");
  c->callback([measure_too] { run(*measure_too); });
}

}  // namespace xylem::cli
