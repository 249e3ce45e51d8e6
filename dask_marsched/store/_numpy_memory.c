/* Allocates NumPy arrays in extents of shared memory that were granted beforehand.
 *
 * NumPy calls the memory handler (NEP 49) of the running code's context, possibly where no Python
 * code may run. So these functions hold a lock for some hundred nanoseconds, and call nothing of
 * Python but what is allowed there.
 *
 * States of an extent: FREE is granted and unused; USED is an array's; TAKEN is published, and not
 * reused when its array ends; ENDED is a TAKEN extent whose array has ended, until its owner asks.
 * Without a fitting extent NumPy's own handler allocates, and the size is recorded.
 *
 * A grant reserves addresses. Memory is filled in with an array; while it is filled or released the
 * extent is BUSY, and the table is not locked. A little memory of ended arrays is kept for the next
 * ones, most recently used first; the rest returns to the system at once, as malloc does.
 *
 * An owner that retires grants and takes nothing more. Its USED extents become LEFT to their
 * arrays, and GONE when these have ended.
 *
 * In a forked process the extents belong to the parent and are INHERITED: no array is allocated in
 * them, and those already there are released without any effect.
 *
 * Published memory must not change. When an extent is taken, a private mapping of the same part of
 * the file replaces the shared one at the array's addresses, so that all later writes, through
 * whatever pointer, go to a copy. When the array has ended, the shared mapping returns. Mappings
 * move together with their page tables, as faulting the pages in again would take as long as a
 * copy. At no moment are the addresses unmapped.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION /* memory handlers */
#include <Python.h>
#include <numpy/arrayobject.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define LARGE_PAGE ((size_t)1 << 21)
#define PUNCH_HOLE (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
#define MOST_EXTENTS 4096
#define MOST_WANTED 64

enum state { EMPTY, FREE, BUSY, USED, TAKEN, ENDED, LEFT, GONE, INHERITED };

typedef struct {
    char *memory;
    size_t size;
    enum state state;
    unsigned long turn; /* time of last use */
    PyObject *owner;    /* keeps the memory mapped */
    char *copy;         /* address of the unused private mapping */
    char *aside;        /* address of the shared mapping while it is replaced */
    int is_private;
    int is_filled;  /* whether it has memory */
    int is_retired; /* whether its owner has retired */
    int fd;        /* of the file; the offset follows */
    off_t offset;
} Extent;

static const Extent nothing; /* EMPTY */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Extent extents[MOST_EXTENTS];
static int n_extents;       /* number of extents ever granted */
static char *lowest, *highest; /* bounds of all extents */
static size_t least;        /* smaller arrays are left to NumPy, bytes */
static size_t most_waiting; /* bound on unused memory, bytes */
static size_t total_filled; /* bytes ever filled in small pages */
static unsigned long turns;
static size_t wanted[MOST_WANTED]; /* sizes that found no extent */
static int n_wanted;
static PyDataMem_Handler *stock;

static int at(void *memory) {
    if ((char *)memory < lowest || (char *)memory >= highest)
        return -1;
    for (int i = 0; i < n_extents; i++)
        if (extents[i].memory == memory && extents[i].state != EMPTY && extents[i].state != ENDED
            && extents[i].state != GONE)
            return i;
    return -1;
}

/* Recorded once: most are temporaries that follow each other. */
static void want(size_t size) {
    for (int i = 0; i < n_wanted; i++)
        if (wanted[i] == size)
            return;
    if (n_wanted < MOST_WANTED)
        wanted[n_wanted++] = size;
}

static int fill_small(char *memory, size_t size, int fd, off_t offset) {
    if (size == 0)
        return 1;
    if (posix_fallocate(fd, offset, size) != 0)
        return 0;
    madvise(memory, size, MADV_POPULATE_WRITE); /* avoids one fault per page */
    return 1;
}

/* Fill a mapped part of a file with memory: a store to a page without any would kill this process.
 * Uses large pages if kernel and alignment allow: 8 MiB then take 0.5 ms instead of 4, less than
 * with malloc. On request the kernel collapses small pages into a large one, even for files in
 * memory, which get none by default.
 *
 * Returns the bytes in small pages, or -1 if there is not enough memory. */
static Py_ssize_t fill_in(char *memory, size_t size, int fd, off_t offset) {
    size_t head = -(size_t)memory % LARGE_PAGE;
    size_t large = size > head ? (size - head) / LARGE_PAGE * LARGE_PAGE : 0;
    int is_large = large > 0 && (offset + head) % LARGE_PAGE == 0;
    for (size_t done = 0; is_large && done < large; done += LARGE_PAGE)
        is_large = fallocate(fd, 0, offset + head + done, 1) == 0;
    if (!is_large || madvise(memory + head, large, MADV_COLLAPSE) != 0)
        return fill_small(memory, size, fd, offset) ? (Py_ssize_t)size : -1;
    size_t end = head + large;
    int is_filled = fill_small(memory, head, fd, offset)
                    && fill_small(memory + end, size - end, fd, offset + end);
    return is_filled ? (Py_ssize_t)(size - large) : -1;
}

static Py_ssize_t fill(char *memory, size_t size, int fd, off_t offset) {
    Py_ssize_t in_small = fill_in(memory, size, fd, offset);
    if (in_small < 0) /* filled entirely or not at all */
        fallocate(fd, PUNCH_HOLE, offset, size);
    return in_small;
}

static void *use_extent(size_t size) {
    int best = -1, best_fits = 0, n_fit = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_extents; i++) {
        Extent *e = &extents[i];
        /* Much larger extents are left to arrays of their size. */
        if (e->state != FREE || e->size < size || e->size / 2 > size)
            continue;
        /* Prefer filled extents, and among these the last used, which is in the processor's
         * cache. */
        int fits = e->size - size <= size / 4 ? 1 + e->is_filled : 0;
        n_fit += fits > 0;
        size_t best_size = best < 0 ? 0 : extents[best].size;
        if (best < 0 || fits > best_fits
            || (fits == best_fits
                && (e->size < best_size || (e->size == best_size && e->turn > extents[best].turn)))) {
            best = i;
            best_fits = fits;
        }
    }
    Extent *e = best < 0 ? NULL : &extents[best];
    int is_filled = e != NULL && e->is_filled;
    if (e != NULL) {
        e->state = is_filled ? USED : BUSY;
        e->turn = ++turns;
    }
    if (n_fit < 2) /* so that the next request finds one */
        want(size);
    pthread_mutex_unlock(&lock);
    if (e == NULL || is_filled)
        return e == NULL ? NULL : e->memory;
    /* Without the lock: filling 64 MiB takes 30 ms, which threads should spend in parallel. */
    PyThreadState *thread = PyGILState_Check() ? PyEval_SaveThread() : NULL;
    Py_ssize_t in_small = fill(e->memory, e->size, e->fd, e->offset);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    pthread_mutex_lock(&lock);
    is_filled = e->is_filled = in_small >= 0;
    if (is_filled) {
        total_filled += in_small;
        e->state = e->is_retired ? LEFT : USED;
    }
    else
        e->state = e->is_retired ? ENDED : FREE;
    pthread_mutex_unlock(&lock);
    return is_filled ? e->memory : NULL;
}

/* Release unused memory above the bound, least recently used first. */
static void give_back(void) {
    for (;;) {
        int oldest = -1;
        size_t waiting = 0;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < n_extents; i++) {
            if (extents[i].state != FREE || !extents[i].is_filled)
                continue;
            waiting += extents[i].size;
            if (oldest < 0 || extents[i].turn < extents[oldest].turn)
                oldest = i;
        }
        if (waiting > most_waiting)
            extents[oldest].state = BUSY;
        pthread_mutex_unlock(&lock);
        if (waiting <= most_waiting)
            return;
        Extent *e = &extents[oldest];
        int is_filled = fallocate(e->fd, PUNCH_HOLE, e->offset, e->size) != 0;
        pthread_mutex_lock(&lock);
        e->is_filled = is_filled;
        e->state = e->is_retired ? ENDED : FREE;
        pthread_mutex_unlock(&lock);
        if (is_filled) /* it cannot be released */
            return;
    }
}

/* Release extents that are GONE. Needs the interpreter. */
static int let_go_of_the_gone(void *unused) {
    PyObject *owner;
    do {
        owner = NULL;
        pthread_mutex_lock(&lock);
        for (int i = 0; owner == NULL && i < n_extents; i++)
            if (extents[i].state == GONE) {
                owner = extents[i].owner;
                extents[i] = nothing;
            }
        pthread_mutex_unlock(&lock);
        Py_XDECREF(owner);
    } while (owner != NULL);
    return 0;
}

static int end_of(void *memory) {
    int is_gone = 0;
    pthread_mutex_lock(&lock);
    int i = at(memory);
    if (i >= 0 && extents[i].state != INHERITED) {
        enum state before = extents[i].state;
        is_gone = before == LEFT;
        extents[i].state = before == TAKEN ? ENDED : is_gone ? GONE : FREE;
        extents[i].turn = ++turns;
    }
    pthread_mutex_unlock(&lock);
    if (i >= 0)
        give_back();
    if (is_gone) /* soon by the main thread, or at the next grant if its queue is full */
        Py_AddPendingCall(let_go_of_the_gone, NULL);
    return i >= 0;
}

static size_t size_of(void *memory) {
    pthread_mutex_lock(&lock);
    int i = at(memory);
    size_t size = i >= 0 ? extents[i].size : 0;
    pthread_mutex_unlock(&lock);
    return size;
}

static void *our_malloc(void *context, size_t size) {
    void *memory = size >= least ? use_extent(size) : NULL;
    return memory ? memory : stock->allocator.malloc(stock->allocator.ctx, size);
}

static void *our_calloc(void *context, size_t n, size_t size) {
    /* NumPy's own zeroed memory costs nothing until it is accessed. */
    return stock->allocator.calloc(stock->allocator.ctx, n, size);
}

static void our_free(void *context, void *memory, size_t size) {
    if (!end_of(memory))
        stock->allocator.free(stock->allocator.ctx, memory, size);
}

static void *our_realloc(void *context, void *memory, size_t size) {
    size_t before = memory ? size_of(memory) : 0;
    if (!before)
        return stock->allocator.realloc(stock->allocator.ctx, memory, size);
    /* Published memory must not change, so the array always moves. */
    void *moved = our_malloc(context, size);
    if (moved) {
        memcpy(moved, memory, before < size ? before : size);
        end_of(memory);
    }
    return moved;
}

static PyDataMem_Handler handler = {
    "dask_marsched", 1, {NULL, our_malloc, our_calloc, our_realloc, our_free}};
static PyObject *handler_capsule;

/* Move a mapping with its page tables; its old addresses are faulted in again on access. */
static int move(char *from, size_t size, char *to) {
    int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    return mremap(from, size, size, how, to) != MAP_FAILED;
}

/* Make later writes to an extent private to this process. */
static int make_private(Extent *e) {
    if (!move(e->memory, e->size, e->aside))
        return 0;
    if (!move(e->copy, e->size, e->memory)) {
        move(e->aside, e->size, e->memory); /* else its pages would be faulted in again */
        return 0;
    }
    e->is_private = 1;
    return 1;
}

/* Share an extent again. An unmodified private mapping may be kept. */
static int make_shared(Extent *e, int keep) {
    if (keep)
        move(e->memory, e->size, e->copy); /* on failure the mapping there is dropped */
    if (!move(e->aside, e->size, e->memory))
        return 0;
    e->is_private = 0;
    return 1;
}

static PyObject *allocate_here(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "nn", &least, &most_waiting))
        return NULL;
    PyObject *before = PyDataMem_SetHandler(handler_capsule);
    if (before == NULL)
        return NULL;
    Py_DECREF(before);
    Py_RETURN_NONE;
}

static PyObject *grant(PyObject *self, PyObject *args) {
    PyObject *owner;
    Py_buffer memory;
    Py_ssize_t copy, aside; /* distances from the memory */
    int fd, is_filled;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "Ow*nninp", &owner, &memory, &copy, &aside, &fd, &offset, &is_filled))
        return NULL;
    let_go_of_the_gone(NULL);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_extents && extents[i].state != EMPTY)
        i++;
    if (i < MOST_EXTENTS) {
        char *start = memory.buf;
        Py_INCREF(owner);
        extents[i] = (Extent){start, (size_t)memory.len, FREE, ++turns, owner,
                              start + copy, start + aside, 0, is_filled, 0, fd, offset};
        if (i == n_extents)
            n_extents++;
        if (lowest == NULL || start < lowest)
            lowest = start;
        if (start + memory.len > highest)
            highest = start + memory.len;
    }
    pthread_mutex_unlock(&lock);
    PyBuffer_Release(&memory);
    return PyLong_FromLong(i < MOST_EXTENTS ? i : -1);
}

/* Return the number of an extent; -1 with an exception if there is none. */
static long number_of(PyObject *arg) {
    long i = PyLong_AsLong(arg);
    if (i >= 0 && i < MOST_EXTENTS)
        return i;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "there is no such extent");
    return -1;
}

static PyObject *withdraw(PyObject *self, PyObject *args) {
    PyObject *number, *owner;
    if (!PyArg_ParseTuple(args, "OO", &number, &owner))
        return NULL;
    long i = number_of(number);
    if (i < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    int is_filled = extents[i].is_filled;
    int goes = extents[i].owner == owner && extents[i].state == FREE;
    if (goes)
        extents[i] = nothing;
    pthread_mutex_unlock(&lock);
    if (!goes)
        Py_RETURN_NONE;
    Py_DECREF(owner);
    return PyBool_FromLong(is_filled);
}

static PyObject *forget(PyObject *self, PyObject *args) {
    PyObject *number, *owner;
    int is_unchanged;
    if (!PyArg_ParseTuple(args, "OOp", &number, &owner, &is_unchanged))
        return NULL;
    long i = number_of(number);
    if (i < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    int is_its = extents[i].owner == owner;
    int goes = is_its && (extents[i].state == ENDED || extents[i].state == GONE)
               && (!extents[i].is_private || make_shared(&extents[i], is_unchanged));
    if (goes)
        extents[i] = nothing;
    pthread_mutex_unlock(&lock);
    if (goes)
        Py_DECREF(owner);
    return PyBool_FromLong(goes || !is_its);
}

static PyObject *has_ended(PyObject *self, PyObject *arg) {
    long i = number_of(arg);
    if (i < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    enum state state = extents[i].state;
    pthread_mutex_unlock(&lock);
    return PyBool_FromLong(state == ENDED || state == GONE || state == EMPTY);
}

static PyObject *retire(PyObject *self, PyObject *owner) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_extents; i++) {
        if (extents[i].owner != owner)
            continue;
        extents[i].is_retired = 1;
        if (extents[i].state == FREE)
            extents[i].state = ENDED;
        else if (extents[i].state == USED || extents[i].state == TAKEN)
            extents[i].state = LEFT;
    }
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* Return the extent in which an array can be published, else -1. Needs the lock. */
static int takable(void *memory, Py_ssize_t bytes) {
    int i = at(memory);
    /* A small view would keep all of its base's extent. */
    return i >= 0 && extents[i].state == USED && extents[i].size / 2 <= (size_t)bytes ? i : -1;
}

static int array_of(PyObject *args, void **memory, Py_ssize_t *bytes) {
    PyObject *address;
    if (!PyArg_ParseTuple(args, "On", &address, bytes))
        return 0;
    *memory = PyLong_AsVoidPtr(address);
    return !PyErr_Occurred();
}

static PyObject *can_take(PyObject *self, PyObject *args) {
    void *memory;
    Py_ssize_t bytes;
    if (!array_of(args, &memory, &bytes))
        return NULL;
    pthread_mutex_lock(&lock);
    int i = takable(memory, bytes);
    pthread_mutex_unlock(&lock);
    return PyBool_FromLong(i >= 0);
}

static PyObject *take(PyObject *self, PyObject *args) {
    void *memory;
    Py_ssize_t bytes;
    if (!array_of(args, &memory, &bytes))
        return NULL;
    pthread_mutex_lock(&lock);
    int i = takable(memory, bytes);
    if (i >= 0 && !make_private(&extents[i]))
        i = -1;
    if (i >= 0)
        extents[i].state = TAKEN;
    pthread_mutex_unlock(&lock);
    return PyLong_FromLong(i);
}

static PyObject *private_parts(PyObject *self, PyObject *owner) {
    PyObject *found = PyList_New(0);
    for (int i = 0; found != NULL && i < n_extents; i++) {
        if (extents[i].owner != owner || !extents[i].is_private)
            continue;
        PyObject *part = Py_BuildValue(
            "(KK)", (unsigned long long)(size_t)extents[i].memory, (unsigned long long)extents[i].size);
        if (part == NULL || PyList_Append(found, part) < 0)
            Py_CLEAR(found);
        Py_XDECREF(part);
    }
    return found;
}

static PyObject *turn(PyObject *self, PyObject *arg) {
    long i = number_of(arg);
    if (i < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    unsigned long found = extents[i].turn;
    pthread_mutex_unlock(&lock);
    return PyLong_FromUnsignedLong(found);
}

static PyObject *waiting(PyObject *self, PyObject *owner) {
    size_t filled = 0, not_filled = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_extents; i++)
        if (extents[i].owner == owner && extents[i].state == FREE)
            *(extents[i].is_filled ? &filled : &not_filled) += extents[i].size;
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("(nn)", (Py_ssize_t)filled, (Py_ssize_t)not_filled);
}

static PyObject *sizes_wanted(PyObject *self, PyObject *unused) {
    size_t sizes[MOST_WANTED];
    pthread_mutex_lock(&lock);
    int n = n_wanted;
    memcpy(sizes, wanted, n * sizeof(size_t));
    n_wanted = 0;
    pthread_mutex_unlock(&lock);
    PyObject *found = PyList_New(n);
    for (int i = 0; found != NULL && i < n; i++) {
        PyObject *size = PyLong_FromSize_t(sizes[i]);
        if (size == NULL) {
            Py_CLEAR(found);
            break;
        }
        PyList_SET_ITEM(found, i, size);
    }
    return found;
}

static PyObject *filled(PyObject *self, PyObject *unused) {
    pthread_mutex_lock(&lock);
    size_t bytes = total_filled;
    pthread_mutex_unlock(&lock);
    return PyLong_FromSize_t(bytes);
}

static PyObject *fill_part(PyObject *self, PyObject *args) {
    Py_buffer memory;
    Py_ssize_t offset, in_small;
    int fd;
    if (!PyArg_ParseTuple(args, "w*in", &memory, &fd, &offset))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    in_small = fill(memory.buf, memory.len, fd, offset);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&memory);
    return PyBool_FromLong(in_small >= 0);
}

static PyMethodDef methods[] = {
    {"fill", fill_part, METH_VARARGS, NULL},
    {"filled", filled, METH_NOARGS, NULL},
    {"allocate_here", allocate_here, METH_VARARGS, NULL},
    {"grant", grant, METH_VARARGS, NULL},
    {"withdraw", withdraw, METH_VARARGS, NULL},
    {"can_take", can_take, METH_VARARGS, NULL},
    {"take", take, METH_VARARGS, NULL},
    {"forget", forget, METH_VARARGS, NULL},
    {"has_ended", has_ended, METH_O, NULL},
    {"private_parts", private_parts, METH_O, NULL},
    {"retire", retire, METH_O, NULL},
    {"turn", turn, METH_O, NULL},
    {"waiting", waiting, METH_O, NULL},
    {"sizes_wanted", sizes_wanted, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_numpy_memory", NULL, -1, methods, NULL, NULL, NULL, NULL};

/* Lock the table for a fork: a thread that holds it would not exist in the child. */
static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&lock); }

static void after_fork_in_child(void) {
    for (int i = 0; i < n_extents; i++)
        if (extents[i].state == FREE || extents[i].state == BUSY || extents[i].state == USED
            || extents[i].state == TAKEN || extents[i].state == LEFT)
            extents[i].state = INHERITED;
    n_wanted = 0;
    pthread_mutex_unlock(&lock);
}

PyMODINIT_FUNC PyInit__numpy_memory(void) {
    import_array();
    stock = (PyDataMem_Handler *)PyCapsule_GetPointer(PyDataMem_DefaultHandler, "mem_handler");
    if (stock == NULL)
        return NULL;
    handler_capsule = PyCapsule_New(&handler, "mem_handler", NULL);
    if (handler_capsule == NULL)
        return NULL;
    static int at_fork; /* registered once: locking twice would deadlock */
    if (!at_fork && pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0)
        return PyErr_NoMemory();
    at_fork = 1;
    return PyModule_Create(&module);
}
