// Search and sorting of the table before this script, by https://datatables.net.
(() => {
  const tables = document.querySelectorAll('table.docutils');
  const table = new DataTable(tables[tables.length - 1], {
    order: [],
    pageLength: 25,
    lengthMenu: [25, 100, -1],
    language: {search: 'Search', searchPlaceholder: 'swin 512', lengthMenu: '_MENU_ rows',
               info: '_START_ to _END_ of _TOTAL_', infoFiltered: '(of _MAX_)', infoEmpty: 'none'},
  });
  // The button that copies code takes a click's delegateTarget, which DataTables sets, for its own.
  table.table().container().addEventListener('click', (event) => event.stopPropagation());
})();
