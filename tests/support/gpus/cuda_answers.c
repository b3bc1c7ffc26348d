/* Libraries that answer `hvdtune doctor`'s questions without any GPU: libcuda, NCCL and NVRTC in one
 * file, ours. GPUS is their number, FAILS the result of cuInit, NEIGHBOURS 0 keeps GPUs apart. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#ifndef GPUS
#define GPUS 2
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 1
#endif

int cuInit(unsigned flags) {
  if (FAILS == 9) raise(SIGKILL); /* as a library that crashes */
  return flags ? 1 : FAILS;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == 100 ? "no CUDA-capable device is detected" : NULL;
  return 0;
}
int cuDriverGetVersion(int* version) { return *version = 12040, 0; }
int cuDeviceGetCount(int* count) { return *count = GPUS, 0; }
int cuDeviceGet(int* device, int index) { return *device = 10 + index, index >= GPUS; }
int cuDeviceGetName(char* name, int size, int device) {
  return snprintf(name, size, "Test GPU %c", 'A' + device - 10), 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)80 << 30, device < 10; }
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  return snprintf(text, size, "0000:%02X:00.0", device), 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0;
  return (attribute != 75 && attribute != 76) || device < 10;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = NEIGHBOURS;
  return device == peer;
}
int ncclGetVersion(int* version) { return *version = 22707, 0; }
int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 9, 0; }
