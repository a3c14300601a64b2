// switching.hpp -- leave one stack, go on upon another: 20 instructions where the machine is known, else ucontext.
#pragma once
#include <stdint.h>

#if defined(__ELF__) && !defined(CUDA_CPU_UCONTEXT) && (defined(__x86_64__) || defined(__aarch64__))
#define CUDA_CPU_ASM 1
#else
#define CUDA_CPU_ASM 0
#include <ucontext.h>
#endif

#if CUDA_CPU_ASM
// Saves what a called function must preserve on the stack, the stack pointer at *save, and takes up what lies at load.
extern "C" __attribute__((visibility("hidden"))) void cuda_cpu_switch_stack(void** save, void* load);
#endif

#if CUDA_CPU_ASM && defined(__x86_64__)
asm(R"(
.text
.globl cuda_cpu_switch_stack
.hidden cuda_cpu_switch_stack
.type cuda_cpu_switch_stack,@function
cuda_cpu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size cuda_cpu_switch_stack,.-cuda_cpu_switch_stack
)");
#elif CUDA_CPU_ASM
asm(R"(
.text
.globl cuda_cpu_switch_stack
.hidden cuda_cpu_switch_stack
.type cuda_cpu_switch_stack,%function
cuda_cpu_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size cuda_cpu_switch_stack,.-cuda_cpu_switch_stack
)");
#endif

namespace cuda_cpu {

// Where a suspended computation goes on.
#if CUDA_CPU_ASM
struct Context { void* sp = nullptr; };

inline void switch_context(Context& from, Context& to) { cuda_cpu_switch_stack(&from.sp, to.sp); }

// Arrange that the first switch to the context calls entry(), which must not return.
inline void start_context(Context& context, char*, char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
#if defined(__x86_64__)
  *--sp = nullptr;                                           // entry's own return address
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--sp = nullptr;
#else
  sp -= 20;
  for (int i = 0; i < 20; i++) sp[i] = nullptr;
  sp[11] = reinterpret_cast<void*>(entry);
#endif
  context.sp = sp;
}
#else
struct Context { ucontext_t state; };

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

inline void start_context(Context& context, char* bottom, char* top, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = bottom;
  context.state.uc_stack.ss_size = top - bottom;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
#endif

}  // namespace cuda_cpu
