/* Memory for NumPy's arrays out of extents that were granted beforehand.
 *
 * NumPy asks a handler for the memory of arrays (NEP 49), one that belongs to the context of the
 * code that runs. It asks and gives back anywhere, also where no Python code may run: so what is
 * done here takes a lock for some hundred nanoseconds, and calls nothing of Python but what may
 * be called anywhere.
 *
 * An extent is granted (FREE), is an array's (USED), and may be taken from it: published, it is
 * not to be used again when the array ends (TAKEN), until whoever took it hears of that (ENDED).
 * Where none fits, memory comes from NumPy's own handler, and the size is noted down.
 *
 * What is granted are addresses. Memory comes when an array does, and while it has it or gives it
 * back (BUSY) the table is not locked. Of the memory of arrays that have ended a little waits for the
 * next ones, that which was used last; all else goes back to the system at once, as malloc does.
 *
 * Whoever granted may grant no more, and take nothing. What is still an array's then is LEFT to it,
 * and is let go of when that has ended (GONE).
 *
 * A forked process has copies of all this, of memory that is its parent's: what was granted there
 * is INHERITED here. No array is made in it, and those that were are let go of without a trace.
 *
 * What is published must not change. So when an extent is taken, a private mapping of the same part
 * of the file takes the place of the shared one at the array's addresses: whoever writes there from
 * then on, however the pointer was come by, writes to a copy. When the array has ended, the shared
 * mapping comes back. Both keep their page tables, by being moved: to find the pages anew would take
 * as long as a copy. At no moment is nothing mapped there.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
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
    unsigned long turn; /* when it was used last */
    PyObject *owner;    /* keeps the memory mapped */
    char *copy;         /* where the private mapping is while nobody needs it */
    char *aside;        /* where the shared one is while the private one is in its place */
    int is_private;
    int is_filled;  /* there is memory behind it */
    int is_retired; /* its owner grants no more */
    int fd;        /* of the file, and where in it */
    off_t offset;
} Extent;

static const Extent nothing; /* EMPTY */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Extent extents[MOST_EXTENTS];
static int n_extents;       /* those beyond were never granted */
static char *lowest, *highest; /* all of them lie between */
static size_t least;        /* arrays of fewer bytes are NumPy's own */
static size_t most_waiting; /* bytes of memory that wait for an array */
static size_t total_filled; /* bytes of memory that came with arrays, ever, in small pages */
static unsigned long turns;
static size_t wanted[MOST_WANTED]; /* sizes for which there is no extent any more */
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

/* Once, however often: most are temporaries, one after the other. */
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
    madvise(memory, size, MADV_POPULATE_WRITE); /* or they are found one by one */
    return 1;
}

/* Have memory behind a mapped part of a file; a store to a page for which there is none would kill
 * us. Where kernel and alignment allow it that comes in large pages: 8 MiB take 0.5 ms then and not
 * 4, less than malloc's do. The kernel makes one out of a single small page when it is asked to,
 * also where files in memory get none by themselves.
 *
 * Returns how many bytes of it are in small pages, -1 if there is not memory for all. */
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
    if (in_small < 0) /* all of it, or nothing */
        fallocate(fd, PUNCH_HOLE, offset, size);
    return in_small;
}

static void *use_extent(size_t size) {
    int best = -1, best_fits = 0, n_fit = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_extents; i++) {
        Extent *e = &extents[i];
        /* A much larger one is left to the arrays that it was granted for. */
        if (e->state != FREE || e->size < size || e->size / 2 > size)
            continue;
        /* One that is not much larger, where there is memory already if possible; of equals the
         * last used: it is in the processor's cache. */
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
    if (n_fit < 2) /* one that is there when the next is asked for */
        want(size);
    pthread_mutex_unlock(&lock);
    if (e == NULL || is_filled)
        return e == NULL ? NULL : e->memory;
    /* Others may go on: for 64 MiB it takes 30 ms, which the threads of malloc take in parallel. */
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

/* Give memory back that waits, beyond the most that may: what was used last stays. */
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
        if (is_filled) /* it cannot be given back */
            return;
    }
}

/* Let go of what is nobody's any more. Needs the interpreter. */
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
    if (is_gone) /* by the main thread, soon; where too much waits for that, at the next grant */
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
    /* NumPy's own costs nothing until it is looked at. */
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
    /* What is published does not change, so it always moves. */
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

/* Move a mapping, with its page tables; pages that are looked at where it was are found anew. */
static int move(char *from, size_t size, char *to) {
    int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    return mremap(from, size, size, how, to) != MAP_FAILED;
}

/* Let what is written to an extent from now on be seen by this process only. */
static int make_private(Extent *e) {
    if (!move(e->memory, e->size, e->aside))
        return 0;
    if (!move(e->copy, e->size, e->memory)) {
        move(e->aside, e->size, e->memory); /* or its pages are found anew */
        return 0;
    }
    e->is_private = 1;
    return 1;
}

/* Let it be seen by all again. Where the private mapping is as the file is, it may be kept. */
static int make_shared(Extent *e, int keep) {
    if (keep)
        move(e->memory, e->size, e->copy); /* if it fails: what is there ends now */
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
    Py_ssize_t copy, aside; /* how far from the memory they are */
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

/* Return the number of an extent, -1 with an exception where there is none of it. */
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

/* Return the extent of an array that can be published in it, else -1. The lock is held. */
static int takable(void *memory, Py_ssize_t bytes) {
    int i = at(memory);
    /* A small part of what an array's base has would keep all of it. */
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

/* Another thread may be at the table as one forks; in the child it would never go on. */
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
    static int at_fork; /* to lock twice would be for ever */
    if (!at_fork && pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0)
        return PyErr_NoMemory();
    at_fork = 1;
    return PyModule_Create(&module);
}
