#include "tests/simulated_cuda/runtime/kernel_symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <simulated_cuda/sanitizer_choice.h>

// The C library's way to thread-local memory of a module that may have been loaded late.
struct tls_index {
  unsigned long module, offset;
};
extern "C" void* __tls_get_addr(tls_index*);

namespace simulated_cuda {
namespace {

/// The ending of mangled names that [[gnu::abi_tag]] in __shared__ makes.
constexpr std::string_view shared_tag = "B16simulated_shared";

struct Variable {
  std::string symbol;
  SharedVariable place;
};

/// A program or library in memory.
struct Module {
  std::string file;
  std::size_t load_address = 0, thread_local_module = 0;
  std::unordered_map<std::uintptr_t, std::string> functions;  // by address in the file
  std::vector<Variable> shared;
};

struct Mapping {
  const char* data = nullptr;
  std::size_t bytes = 0;

  explicit Mapping(const std::string& file) {
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    struct stat status {};
    if (::fstat(descriptor, &status) == 0) {
      void* address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (address != MAP_FAILED) {
        data = static_cast<const char*>(address);
        bytes = static_cast<std::size_t>(status.st_size);
      }
    }
    ::close(descriptor);
  }
  ~Mapping() {
    if (data) ::munmap(const_cast<char*>(data), bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

void read_symbols(Module& module) {
  const Mapping file(module.file);
  if (!file.data) return;
  const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(file.data);
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data + header.e_shoff);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = file.data + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data + sections[i].sh_offset);
    for (std::size_t k = 0; k < sections[i].sh_size / sizeof(ElfW(Sym)); ++k) {
      const ElfW(Sym)& symbol = symbols[k];
      const std::string_view name = names + symbol.st_name;
      const unsigned type = symbol.st_info & 0xfu;
      if (symbol.st_shndx == SHN_UNDEF) continue;
      if (type == STT_FUNC) {
        module.functions.emplace(symbol.st_value, name);
      } else if ((type == STT_TLS || type == STT_OBJECT) && name.starts_with("_ZZ") && name.find(shared_tag) != name.npos) {
        module.shared.push_back({std::string(name), {symbol.st_value, symbol.st_size}});
      }
    }
  }
}

/// The loaded module that an address lies in, with its symbols; read once.
const Module* module_of(const void* address) {
  struct Search {
    std::uintptr_t address;
    Module found;
    bool is_found = false;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || wanted.address < begin || wanted.address >= begin + segment.p_memsz) continue;
          wanted.found.file = *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
          wanted.found.load_address = info->dlpi_addr;
          wanted.found.thread_local_module = info->dlpi_tls_modid;
          wanted.is_found = true;
          return 1;
        }
        return 0;
      },
      &search);
  if (!search.is_found) return nullptr;
  static auto& modules = *new std::map<std::size_t, Module>;
  const auto [place, is_new] = modules.try_emplace(search.found.load_address, search.found);
  if (is_new) read_symbols(place->second);
  return &place->second;
}

/// "ns::(anonymous namespace)::my_kernel<128>(float*, int)" becomes "my_kernel<128>".
std::string readable(const std::string& symbol) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = demangled ? demangled : symbol;
  std::free(demangled);
  for (const std::string anonymous = "(anonymous namespace)::"; name.find(anonymous) != name.npos;) {
    name.erase(name.find(anonymous), anonymous.size());
  }
  name.erase(std::min(name.find('('), name.size()));
  const std::string_view before_arguments = std::string_view(name).substr(0, name.find('<'));
  const std::size_t scope = before_arguments.rfind("::"), space = before_arguments.rfind(' ');
  if (scope != name.npos) return name.substr(scope + 2);
  return space != name.npos ? name.substr(space + 1) : name;
}

KernelSymbols look_up(const void* kernel) {
  KernelSymbols result;
  char text[32];
  std::snprintf(text, sizeof text, "kernel %p", kernel);
  result.name = text;
  const Module* module = module_of(kernel);
  if (!module) return result;
  result.load_address = module->load_address;
#ifndef SIMULATED_CUDA_ADDRESS_SANITIZER
  result.thread_local_module = module->thread_local_module;
#endif
  const auto symbol = module->functions.find(reinterpret_cast<std::uintptr_t>(kernel) - module->load_address);
  if (symbol == module->functions.end()) return result;
  result.name = readable(symbol->second);
  // A variable x of function _Zf is called _ZZfE1x. Those of functions that are no kernels belong to whoever calls them.
  if (!symbol->second.starts_with("_Z")) return result;
  const std::string own = "_ZZ" + symbol->second.substr(2) + "E";
  for (const Variable& variable : module->shared) {
    if (variable.symbol.starts_with(own) || variable.symbol.find("_kernel") == std::string::npos) {
      result.shared.push_back(variable.place);
    }
  }
  return result;
}

}  // namespace

char* KernelSymbols::shared_begin() const {
  if (thread_local_module == 0) return reinterpret_cast<char*>(load_address);
  tls_index index{thread_local_module, 0};
  return static_cast<char*>(__tls_get_addr(&index));
}

const KernelSymbols& symbols_of(const void* kernel) {
  static std::mutex mutex;
  static auto& known = *new std::map<const void*, KernelSymbols>;
  std::lock_guard lock(mutex);
  const auto found = known.find(kernel);
  return found != known.end() ? found->second : known.emplace(kernel, look_up(kernel)).first->second;
}

}  // namespace simulated_cuda
